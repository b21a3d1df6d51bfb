// Numbers, times and names in words. Times are milliseconds since the epoch by the driver's clock.

const LOCALE = "en";
const counts = new Intl.NumberFormat(LOCALE);
const digits = [0, 1, 2].map(
  (most) => new Intl.NumberFormat(LOCALE, { maximumFractionDigits: most }),
);
const clock = new Intl.DateTimeFormat(LOCALE, {
  hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
});
const day = new Intl.DateTimeFormat("sv", { year: "numeric", month: "2-digit", day: "2-digit" });
const NOTHING = "–";

/** The time zone of all displayed times. */
export const zone = new Intl.DateTimeFormat().resolvedOptions().timeZone;

/** A time or a span without its milliseconds. */
export const wholeSeconds = (ms) => Math.floor(ms / 1000) * 1000;

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** 12,345 */
export function count(value) {
  return isNumber(value) ? counts.format(value) : NOTHING;
}

/** "1 batch", "2 batches" */
export function counted(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** At least three digits, at most two of them decimals. */
export function decimal(value) {
  if (!isNumber(value)) return NOTHING;
  const size = Math.abs(value);
  return digits[size >= 100 ? 0 : size >= 10 ? 1 : 2].format(value);
}

const compact = new Intl.NumberFormat(LOCALE, { notation: "compact", maximumFractionDigits: 1 });

/** 1.2K, for axes. */
export const short = (value) => compact.format(value);

/** 120 records/s */
export function rate(value, unit = "records") {
  return isNumber(value) ? `${decimal(value)} ${unit}/s` : NOTHING;
}

const UNITS = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"], [1000, "s"]];

/** 214 ms, 1.24 s, 2 min 5 s, 3 h 12 min */
export function duration(ms) {
  if (!isNumber(ms)) return NOTHING;
  if (ms < 0) return `−${duration(-ms)}`;
  if (ms < 999.5) return `${ms < 10 ? digits[1].format(ms) : Math.round(ms)} ms`;
  if (ms < 59_950) return `${digits[ms < 9995 ? 2 : 1].format(ms / 1000)} s`;
  const seconds = Math.round(ms / 1000) * 1000;
  const at = UNITS.findIndex(([size]) => seconds >= size);
  const [size, unit] = UNITS[at];
  const [next, smaller] = UNITS[at + 1];
  const rest = Math.floor((seconds % size) / next);
  return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${smaller}` : ""}`;
}

/** 214 ms, 1.24 s, 2m 5s, 3h 12m: for narrow places. */
export const brief = (ms) => (Math.abs(ms) < 59_950 ? duration(ms)
  : duration(ms).replace(/ (d|h|m|s)(in)?(?= |$)/g, "$1"));

/** "1 second", "250 ms", "2 minutes": an interval in a sentence. */
export function interval(ms) {
  if (ms % 60_000 === 0) return counted(ms / 60_000, "minute");
  if (ms < 1000) return `${count(ms)} ms`;
  return `${decimal(ms / 1000)} ${ms === 1000 ? "second" : "seconds"}`;
}

/** 3.2 MB */
export function bytes(value) {
  if (!isNumber(value)) return NOTHING;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  for (; value >= 1000 && at < units.length - 1; at += 1) value /= 1000;
  return `${at === 0 ? count(value) : decimal(value)} ${units[at]}`;
}

/** 14:03:05, with the date unless it is today, and milliseconds unless they are 0. */
export function time(ms, nowMs = Date.now()) {
  if (!isNumber(ms)) return NOTHING;
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return `${count(ms)} ms since 1970`;
  const fraction = ms % 1000 ? `.${String(Math.abs(Math.trunc(ms)) % 1000).padStart(3, "0")}` : "";
  const date = day.format(at);
  return `${date === day.format(new Date(nowMs)) ? "" : `${date} `}${clock.format(at)}${fraction}`;
}

/** 14:03:05; 14:03 without *hasSeconds*. */
export function clockTime(ms, hasSeconds) {
  const shown = clock.format(new Date(ms));
  return hasSeconds ? shown : shown.slice(0, -3);
}

/** 2026-03-01 14:03:05 */
export function fullTime(ms) {
  return isNumber(ms) ? time(ms, 0) : NOTHING;
}

/** 41 % */
export function percent(part) {
  if (!isNumber(part)) return NOTHING;
  return `${digits[part < 0.1 && part > 0 ? 1 : 0].format(part * 100)} %`;
}

// Invisible characters and those that reverse text: names must not deceive.
const UNSEEN = new RegExp("[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u061c"
  + "\\u200b-\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ufeff]", "g");
const escaped = (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`;

/** Untrusted text, with invisible characters escaped and at most *most* characters. */
export function shortened(text, most = 200) {
  const whole = String(text).replace(UNSEEN, escaped);
  return whole.length <= most ? whole : `${whole.slice(0, most)}…`;
}

/** A JSON value as readable text. */
export function plain(value) {
  return typeof value === "string" ? value : JSON.stringify(value) ?? NOTHING;
}

/** *url* if it may be a link: only http and https; otherwise null. */
export function linkable(url) {
  try {
    return /^https?:$/.test(new URL(url).protocol) ? url : null;
  } catch {
    return null;
  }
}
