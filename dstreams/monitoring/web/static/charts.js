// Timelines with histograms. The caption of a chart says the same in words.

import { el, svg, setAttribute, setText, show } from "./dom.js";
import { clockTime, count, percent, time } from "./format.js";

const SECOND = 1000;
const BINS = 12;
const HEIGHT = 132;
const HISTOGRAM = 52;
const OUT_OF_SIGHT_MS = 3000; // between updates of the caption of a chart out of sight
const STILL_MS = 900; // and of one that would move by less than a pixel
const CLIPPED = { batches: 20, times: 3 }; // clip a few values far above the rest

const dark = matchMedia("(prefers-color-scheme: dark)");
const colours = new Map();

/** Return a colour of the style sheet; cached until the colour scheme changes. */
function colour(name) {
  if (!colours.has(name)) {
    colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  }
  return colours.get(name);
}

/** Return statistics of some numbers; null if there are none. */
export function spread(values) {
  const found = new Float64Array(values.length);
  let length = 0;
  let sum = 0;
  for (const value of values) {
    if (value === null) continue;
    found[length] = value;
    sum += value;
    length += 1;
  }
  if (length === 0) return null;
  const sorted = found.subarray(0, length).sort();
  return {
    count: length,
    average: sum / length,
    median: sorted[Math.floor((length - 1) / 2)],
    p95: sorted[Math.min(length - 1, Math.floor(length * 0.95))],
    least: sorted[0],
    most: sorted[length - 1],
  };
}

/**
 * A chart of one number per batch over time, with its distribution.
 *
 *   title     the heading
 *   value     (batch) => number or null
 *   words     (number) => text, with the unit unless *unit* has it
 *   unit      text after a list of numbers, such as " records/s"
 *   axis      (number) => label of the axis; default: words
 *   steps     between labels of the axis, if not decimal
 *   line      (status) => number to draw as a line, or null
 *   lineWords name of the line
 *   stack     (batches) => [{ name, value }], drawn as a stack instead of value
 */
export class Timeline {
  #spec;
  #plot = null;
  #drawn = null;
  #next = null;
  #isVisible = false;
  #status = null;
  #width = 0;
  #said = null;
  #saidMs = -Infinity;

  constructor(spec, openBatch) {
    this.#spec = spec;
    this.openBatch = openBatch;
    this.area = el("div", { class: "plot", "aria-hidden": "true" });
    this.bins = Array.from({ length: BINS }, () => svg("rect", { class: "bin", x: 0 }));
    this.histogram = svg("svg", { class: "histogram", "aria-hidden": "true" }, ...this.bins);
    this.label = el("span", { class: "average" });
    this.caption = el("p", { class: "numbers" });
    this.cursor = el("p", { class: "cursor", "aria-hidden": "true" });
    this.legend = el("ul", { class: "legend" });
    this.node = el("figure", { class: "chart" },
      el("figcaption", {},
        el("h3", {}, el("span", { text: spec.title }), this.label),
        this.caption, this.legend),
      this.canvas = el("div", { class: "canvas" }, this.area, this.histogram, this.cursor));
    show(this.legend, spec.stack !== undefined);
    show(this.cursor, false);
    if (spec.stack !== undefined) this.histogram.remove();
    new IntersectionObserver((entries) => {
      this.#isVisible = entries.at(-1).isIntersecting;
      if (this.#isVisible && this.#next !== null) this.#say(this.#next.batches);
      this.#draw();
    }, { rootMargin: "200px" }).observe(this.node);
    new ResizeObserver((entries) => { // reading the width elsewhere costs a layout
      this.#width = Math.floor(entries.at(-1).contentRect.width);
      this.#resize();
    }).observe(this.area);
  }

  /** Show these batches once the chart is in sight. */
  update(status, batches) {
    if (this.#said === batches) return;
    this.#status = status;
    this.#next = { batches };
    const now = performance.now();
    const patience = !this.#isVisible ? OUT_OF_SIGHT_MS : this.#hasMoved(batches) ? 0 : STILL_MS;
    if (now - this.#saidMs < patience) return;
    this.#saidMs = now;
    this.#say(batches);
    this.#draw();
  }

  /** Draw from scratch, as after a change of the colour scheme. */
  redraw() {
    this.#plot?.destroy();
    this.#plot = this.#drawn = null;
    this.#draw();
  }

  // A line of a thousand batches moves by less than a pixel per batch.
  #hasMoved(batches) {
    const drawn = this.#drawn?.at(-1)?.batch_time_ms ?? -Infinity;
    let more = 0;
    while (more < batches.length && batches.at(-1 - more).batch_time_ms > drawn) more += 1;
    const grown = Math.abs(batches.length - (this.#drawn?.length ?? 0));
    return Math.max(more, grown) * this.#width >= batches.length;
  }

  #say(batches) {
    this.#said = batches;
    show(this.canvas, batches.length > 0);
    const { words, value, stack, line, lineWords, unit = "" } = this.#spec;
    if (stack !== undefined) return this.#sayStack(batches);
    this.values = batches.map(value);
    const found = spread(this.values);
    const newest = this.values.findLast((one) => one !== null);
    setText(this.label, found === null ? "" : `average ${words(found.average)}${unit}`);
    if (found === null) return setText(this.caption, "No batch has a value yet.");
    const limit = line?.(this.#status) ?? null;
    const below = limit === null ? "" : ` ${percent(
      this.values.filter((one) => one !== null && one <= limit).length / found.count,
    )} of the batches are within the ${lineWords} of ${words(limit)}.`;
    if (words(found.least) === words(found.most)) {
      return setText(this.caption, `The same in ${
        found.count === 1 ? "the only batch" : `all ${count(found.count)} batches`}.${below}`);
    }
    return setText(this.caption, `Newest ${words(newest)}, median ${words(found.median)}, `
      + `95 % up to ${words(found.p95)}, from ${words(found.least)} to ${words(found.most)}${unit}.`
      + below);
  }

  #sayStack(batches) {
    const { words, stack } = this.#spec;
    const parts = stack(batches);
    const found = parts.map((part) => spread(batches.map(part.value)));
    const rows = parts.map((part, at) => {
      const row = this.legend.children[at] ?? this.legend.appendChild(
        el("li", {}, el("span", { class: `swatch phase-${at % 8}`, "aria-hidden": "true" }),
          el("span")));
      const average = found[at] === null ? "–" : words(found[at].average);
      setText(row.lastChild, `${part.name} ${average}`);
      return row;
    });
    while (this.legend.children.length > rows.length) this.legend.lastChild.remove();
    const whole = found.reduce((sum, one) => sum + (one?.average ?? 0), 0);
    setText(this.label, batches.length === 0 ? "" : `average ${words(whole)}`);
    setText(this.caption, batches.length === 0
      ? "No batch has a value yet." : "Average of each part, from the bottom up:");
  }

  #draw() {
    const { batches } = this.#next ?? {};
    if (!this.#isVisible || batches === undefined || this.#drawn === batches) return;
    if (this.#width === 0) return;
    this.#drawn = batches;
    const columns = this.#columns(batches);
    const limit = this.#spec.line?.(this.#status) ?? null;
    this.#top = niceTop(Math.max(this.#peak(columns[1] ?? []), limit ?? 0));
    if (this.#plot !== null && this.#plot.series.length !== columns.length) {
      this.#plot.destroy();
      this.#plot = null;
    }
    if (this.#plot === null) this.#plot = this.#made(columns);
    else this.#plot.setData(columns);
    this.#drawHistogram();
  }

  #top = 1;

  // The largest value to draw, clipped: one slow batch must not squash all others.
  #peak(values) {
    const found = spread(values);
    if (found === null) return 0;
    const isOff = found.count >= CLIPPED.batches && found.most > CLIPPED.times * found.p95;
    return isOff && found.p95 > 0 ? 1.5 * found.p95 : found.most;
  }

  // x in seconds; a stack as sums, the total first: each series covers the previous one.
  #columns(batches) {
    const times = batches.map((batch) => batch.batch_time_ms / SECOND);
    if (this.#spec.stack === undefined) return [times, this.values];
    const sums = new Array(batches.length).fill(0);
    const columns = this.#spec.stack(batches).map((part) => batches.map((batch, at) => {
      sums[at] += part.value(batch) ?? 0;
      return sums[at];
    }));
    return [times, ...columns.reverse()];
  }

  #made(columns) {
    const { stack, words, axis: short = words, steps } = this.#spec;
    const axis = {
      stroke: colour("--muted"), font: `11px ${getComputedStyle(document.body).fontFamily}`,
      grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false },
    };
    const main = colour("--series");
    const count = columns.length - 1;
    const series = columns.slice(1).map((_, at) => (stack === undefined
      ? { stroke: main, fill: colour("--series-fill"), width: 1.5, points: { size: 4 } }
      : { fill: colour(`--phase-${(count - 1 - at) % 8}`), width: 0, points: { show: false } }));
    return new window.uPlot({
      width: this.#width,
      height: HEIGHT,
      padding: [8, 26, 0, 0],
      legend: { show: false },
      cursor: {
        y: false, sync: { key: "batches" }, drag: { x: false, y: false },
        points: { show: stack === undefined },
      },
      scales: { x: { time: true, range: (_, from, to) => (from === to ? [from - 30, to + 30] : [from, to]) }, y: { range: () => [0, this.#top] } },
      axes: [
        { ...axis, size: 24, space: 70, values: (_, marks) => ticks(marks) },
        {
          ...axis, size: (_, marks) => labelWidth(marks ?? [], axis.font), space: 30, gap: 4,
          ...(steps ? { incrs: steps } : {}),
          values: (_, marks) => marks.map((one) => short(one)),
        },
      ],
      series: [{}, ...series],
      hooks: {
        draw: [(plot) => this.#drawMarks(plot)],
        setCursor: [(plot) => this.#pointed(plot)],
        ready: [(plot) => plot.over.addEventListener("click", () => this.#clicked(plot))],
      },
    }, columns, this.area);
  }

  // Draws the interval as a line, marks of failed batches below and of clipped ones above.
  #drawMarks(plot) {
    const { ctx, bbox } = plot;
    const limit = this.#spec.line?.(this.#status) ?? null;
    const ratio = window.devicePixelRatio || 1;
    ctx.save();
    if (limit !== null) {
      const y = plot.valToPos(limit, "y", true);
      ctx.strokeStyle = colour("--limit");
      ctx.lineWidth = ratio * 1.5;
      ctx.setLineDash([5 * ratio, 4 * ratio]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
    }
    const mark = (batch, y, name) => {
      const x = plot.valToPos(batch.batch_time_ms / SECOND, "x", true);
      ctx.fillStyle = colour(name);
      ctx.beginPath();
      ctx.moveTo(x, y - 9 * ratio);
      ctx.lineTo(x - 5 * ratio, y);
      ctx.lineTo(x + 5 * ratio, y);
      ctx.fill();
    };
    (this.#drawn ?? []).forEach((batch, at) => {
      if (batch.outcome === "failed") mark(batch, bbox.top + bbox.height, "--bad");
      if (plot.data[1][at] > this.#top) mark(batch, bbox.top + 9 * ratio, "--text");
    });
    ctx.restore();
  }

  #drawHistogram() {
    if (this.#spec.stack !== undefined) return;
    const counts = new Array(BINS).fill(0);
    for (const one of this.values) {
      if (one !== null) counts[Math.min(BINS - 1, Math.floor((one / this.#top) * BINS))] += 1;
    }
    const most = Math.max(1, ...counts);
    const plotted = HEIGHT - 8 - 24; // as in uPlot: padding above, axis below
    setAttribute(this.histogram, "viewBox", `0 0 ${HISTOGRAM} ${HEIGHT}`);
    this.bins.forEach((bin, at) => {
      const height = plotted / BINS;
      setAttribute(bin, "y", (8 + plotted - (at + 1) * height + 0.5).toFixed(1));
      setAttribute(bin, "height", (height - 1).toFixed(1));
      setAttribute(bin, "width", ((counts[at] / most) * HISTOGRAM).toFixed(1));
    });
  }

  #pointed(plot) {
    const batch = plot.cursor.idx === null ? undefined : this.#drawn?.[plot.cursor.idx];
    const isPointed = batch !== undefined && plot.cursor.left >= 0;
    show(this.cursor, isPointed);
    if (isPointed) setText(this.cursor, this.#pointedWords(batch));
  }

  #pointedWords(batch) {
    const { words, value, stack, unit = "" } = this.#spec;
    const shown = stack === undefined
      ? `${words(value(batch))}${unit}`
      : stack([batch]).map((part) => `${part.name} ${words(part.value(batch) ?? 0)}`).join(", ");
    return `${time(batch.batch_time_ms)}, batch ${batch.batch_id}: ${shown}`;
  }

  #clicked(plot) {
    const batch = this.#drawn?.[plot.cursor.idx];
    if (batch !== undefined) this.openBatch(batch);
  }

  #resize() {
    const width = this.#width;
    if (this.#plot === null) this.#draw();
    else if (width > 0 && width !== this.#plot.width) this.#plot.setSize({ width, height: HEIGHT });
  }
}

/** Call back when the colour scheme changes. */
export function onScheme(changed) {
  dark.addEventListener("change", () => {
    colours.clear();
    changed();
  });
}

function ticks(seconds) {
  const isFine = seconds.length > 1 && seconds[1] - seconds[0] < 60;
  const marks = seconds.map((one) => clockTime(Math.round(one) * SECOND, isFine));
  return marks.map((mark, at) => (mark === marks[at - 1] ? "" : mark));
}

const ruler = document.createElement("canvas").getContext("2d");

/** Width of the longest label of an axis. */
function labelWidth(labels, font) {
  ruler.font = font;
  return Math.ceil(Math.max(24, ...labels.map((one) => ruler.measureText(one).width))) + 12;
}

/** The end of an axis: a little above the largest value, never 0. */
function niceTop(most) {
  return most > 0 ? most * 1.08 : 1;
}

/** A bar filled by a part of 1. */
export function bar(part, tone = "") {
  const fill = el("span", { class: `fill ${tone}` });
  fill.style.width = `${Math.max(0, Math.min(1, part)) * 100}%`;
  return el("span", { class: "bar", "aria-hidden": "true" }, fill);
}
