// The graph of a stream or query as layers: a step is drawn behind all steps that it takes from.

import { el, scrolling, setText, svg } from "./dom.js";
import { bytes, count, counted, shortened } from "./format.js";
import { FoldedTable, Table } from "./table.js";

const BOX = { width: 184, height: 66, inside: 162 };
const GAP = { along: 36, across: 22 };
const SWEEPS = 6;
const STACKED = 640; // a picture that is less wide goes down

const KINDS = { input: "input", step: "step", state: "with state", output: "output" };

/** Split "map at app.py:12" in what is done, and where the program says so. */
function parted(operation) {
  const at = operation.lastIndexOf(" at ");
  return at < 0 ? [operation, ""] : [operation.slice(0, at), operation.slice(at + 1)];
}

const ruler = document.createElement("canvas").getContext("2d");

/** As much of a text as a box has room for. */
function cut(text, font) {
  const whole = shortened(text, 100);
  if (whole.length <= SURE) return whole;
  ruler.font = `${font} ${getComputedStyle(document.body).fontFamily}`;
  if (ruler.measureText(whole).width <= BOX.inside) return whole;
  let length = whole.length;
  const begin = () => `${whole.slice(0, length)}…`;
  while (length > 1 && ruler.measureText(begin()).width > BOX.inside) length -= 1;
  return begin();
}

const SURE = 18; // letters that fit without measuring
const AGAIN_MS = 900; // sizes of state change with each batch, and are read at leisure
const BOLD = "600 13px";
const PLAIN = "12px";

/**
 * Return where each step is: `layer` along the way of the records, `place` across it.
 *
 * An edge over several layers gets a turn in each, so that it goes between the steps there.
 */
export function layout(graph) {
  const layerOf = new Map();
  for (const node of graph) {
    const before = node.parents.map((parent) => layerOf.get(parent) ?? 0);
    layerOf.set(node.number, before.length ? Math.max(...before) + 1 : 0);
  }
  pullInputs(graph, layerOf);
  const layers = [];
  const spots = new Map();
  const spot = (key, layer) => {
    const made = { key, layer, place: 0, before: [], after: [] };
    (layers[layer] ??= []).push(made);
    spots.set(key, made);
    return made;
  };
  for (const node of graph) spot(node.number, layerOf.get(node.number));
  const paths = [];
  for (const node of graph) {
    for (const parent of new Set(node.parents)) {
      if (!spots.has(parent)) continue;
      const path = [spots.get(parent)];
      for (let at = layerOf.get(parent) + 1; at < layerOf.get(node.number); at += 1) {
        path.push(spot(`${parent}-${node.number}@${at}`, at));
      }
      path.push(spots.get(node.number));
      for (let at = 1; at < path.length; at += 1) {
        path[at - 1].after.push(path[at]);
        path[at].before.push(path[at - 1]);
      }
      paths.push(path);
    }
  }
  order(layers);
  place(layers);
  return { spots, paths, layers };
}

// An input stands right before the first step that reads it, not at the far end.
function pullInputs(graph, layerOf) {
  for (const node of graph) {
    if (node.parents.length > 0) continue;
    const readers = graph.filter((other) => other.parents.includes(node.number));
    if (readers.length === 0) continue;
    layerOf.set(node.number, Math.min(...readers.map((one) => layerOf.get(one.number))) - 1);
  }
}

// Each layer is sorted by the middle of its neighbours, there and back, which leaves few crossings.
function order(layers) {
  const rank = () => layers.forEach((layer) => layer.forEach((one, at) => { one.rank = at; }));
  rank();
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const isForth = sweep % 2 === 0;
    for (const layer of isForth ? layers : layers.toReversed()) {
      for (const one of layer) {
        const near = isForth ? one.before : one.after;
        one.weight = near.length ? near.reduce((sum, each) => sum + each.rank, 0) / near.length
          : one.rank;
      }
      layer.sort((one, other) => one.weight - other.weight || one.rank - other.rank);
      layer.forEach((one, at) => { one.rank = at; });
    }
  }
}

// Spots move to the middle of their neighbours as far as those beside them leave room.
function place(layers) {
  for (const layer of layers) layer.forEach((one, at) => { one.place = at; });
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const isForth = sweep % 2 === 0;
    for (const layer of isForth ? layers : layers.toReversed()) {
      const wished = layer.map((one) => {
        const near = [...(isForth ? one.before : one.after)];
        return near.length ? near.reduce((sum, each) => sum + each.place, 0) / near.length
          : one.place;
      });
      spaced(wished).forEach((at, index) => { layer[index].place = at; });
    }
  }
  const least = Math.min(...layers.flat().map((one) => one.place));
  for (const one of layers.flat()) one.place -= least;
}

// Places at least 1 apart, in order, and as near to the wished ones as an average of both ways is.
function spaced(wished) {
  const up = [];
  wished.forEach((wish, at) => up.push(at === 0 ? wish : Math.max(wish, up[at - 1] + 1)));
  const down = [];
  for (let at = wished.length - 1; at >= 0; at -= 1) {
    down[at] = at === wished.length - 1 ? wished[at] : Math.min(wished[at], down[at + 1] - 1);
  }
  const middle = up.map((one, at) => (one + down[at]) / 2);
  return middle;
}

/** The picture of a graph, and the same as a table. */
export class Graph {
  #shape = "";
  #sizes = new Map();
  #room = 0;
  #drawnMs = -Infinity;

  constructor() {
    this.drawing = el("div", { class: "drawing" });
    this.picture = scrolling(this.drawing, "Graph", "graph scroll");
    this.table = new FoldedTable("The same as a table", new Table("Steps of the graph", [
      { head: "Step", text: (node) => count(node.number), isNumber: true },
      { head: "Operation", text: (node) => shortened(node.operation), isName: true },
      { head: "Kind", text: (node) => KINDS[node.kind] ?? node.kind },
      { head: "uid", text: (node) => shortened(node.uid), isName: true },
      { head: "Takes from", text: (node) => node.parents.join(", ") || "–" },
      { head: "Durable", text: (node) => node.durable || "–" },
      { head: "State", text: (node) => this.#sizes.get(node.uid) ?? "–" },
    ], (node) => node.number));
    this.node = el("div", {}, this.picture, this.table.node);
    new ResizeObserver((entries) => { // asking for the width in between costs a layout
      this.#room = Math.floor(entries.at(-1).contentRect.width);
      this.#draw();
    }).observe(this.picture);
  }

  update(status) {
    const now = performance.now();
    if (now - this.#drawnMs < AGAIN_MS && status.run_id === this.status.run_id) return;
    this.#drawnMs = now;
    this.status = status;
    this.#sizes = new Map(status.states.map((state) => [state.uid,
      `${counted(state.keys, "key")}, ${bytes(state.memory_bytes ?? state.written_bytes)}`]));
    this.table.update(status.graph);
    this.#draw();
  }

  #draw() {
    const { status } = this;
    const room = this.#room;
    if (!status || room === 0) return;
    const shape = `${status.run_id} ${status.graph.length} ${room}`;
    if (shape !== this.#shape) {
      this.#shape = shape;
      this.#make(status, room);
    }
    for (const [uid, text] of this.stateTexts ?? []) {
      const size = this.#sizes.get(uid) ?? "no state yet";
      if (text.whole === size) continue;
      text.whole = size; // measuring is not for every update
      setText(text, cut(size, PLAIN));
    }
  }

  // Records run from left to right where there is room for it, and down where there is none.
  #make(status, room) {
    this.stateTexts = [];
    if (!status.graph.length) { // of a driver that begins, which has not said yet what it runs
      this.drawing.replaceChildren();
      return;
    }
    const { spots, paths, layers } = layout(status.graph);
    const across = 1 + Math.max(...[...spots.values()].map((one) => one.place), 0);
    const lying = layers.length * (BOX.width + GAP.along);
    const isLying = lying - GAP.along <= room && room >= STACKED;
    const step = isLying
      ? { along: BOX.width + GAP.along, across: BOX.height + GAP.across }
      : { along: BOX.height + GAP.along, across: BOX.width + GAP.across };
    const at = (spot) => (isLying
      ? { x: spot.layer * step.along, y: spot.place * step.across }
      : { x: spot.place * step.across, y: spot.layer * step.along });
    const along = layers.length * step.along - GAP.along;
    const wide = across * step.across - GAP.across;
    const [width, height] = isLying ? [along, wide] : [wide, along];
    const edges = paths.map((path) => svg("path", {
      class: "edge", "marker-end": "url(#arrow)", d: line(path.map(at), isLying),
    }));
    const boxes = status.graph.map((node) => this.#box(node, at(spots.get(node.number))));
    const arrow = svg("marker", {
      id: "arrow", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 8, markerHeight: 8,
      orient: "auto-start-reverse",
    }, svg("path", { d: "M0 0L8 4L0 8z", class: "arrow" }));
    this.drawing.replaceChildren(svg("svg", {
      viewBox: `-2 -2 ${width + 4} ${height + 4}`, width: width + 4, height: height + 4,
      role: "img", "aria-label": `Graph of ${counted(status.graph.length, "step")}; `
        + "the same is in the table below",
    }, svg("defs", {}, arrow), ...edges, ...boxes));
  }

  #box(node, { x, y }) {
    const [operation, where] = parted(node.operation);
    const isNamed = node.uid && !isNumbered(node.uid, operation);
    const text = (className, line, shown) => svg("text", {
      class: className, x: x + 12, y: y + 20 + line * 18,
      text: cut(shown, line === 0 ? BOLD : PLAIN),
    });
    const third = text("size", 2, node.kind === "state" ? "" : node.durable);
    if (node.kind === "state") this.stateTexts.push([node.uid, third]);
    const first = isNamed ? operation : node.uid || operation;
    const second = [isNamed && node.uid, where].filter(Boolean).join(" ");
    const told = [node.operation, node.uid && `uid ${node.uid}`,
      node.durable && `durable: ${node.durable}`].filter(Boolean).join("; ");
    const parts = [
      svg("title", { text: shortened(told, 500) }),
      svg("rect", { x, y, width: BOX.width, height: BOX.height, rx: 8 }),
      svg("rect", { class: "edge-of-kind", x, y: y + 8, width: 4, height: BOX.height - 16, rx: 2 }),
      text("operation", 0, first), text("where", 1, second), third,
    ];
    return svg("g", { class: `step ${node.kind}` }, ...parts);
  }
}

// Whether a uid is the one that an operation has by its place, such as map-0.
function isNumbered(uid, operation) {
  return uid.startsWith(operation) && /^(-\d+)?$/.test(uid.slice(operation.length));
}

function line(points, isLying) {
  const half = isLying ? BOX.height / 2 : BOX.width / 2;
  const length = isLying ? BOX.width : BOX.height;
  const middle = points.map(({ x, y }) => (isLying ? { x, y: y + half } : { x: x + half, y }));
  let path = "";
  for (let at = 1; at < middle.length; at += 1) {
    const from = move(middle[at - 1], isLying, length);
    const to = middle[at];
    if (at === 1) path += `M${from.x} ${from.y}`;
    else path += `L${from.x} ${from.y}`;
    const bend = isLying
      ? `C${(from.x + to.x) / 2} ${from.y} ${(from.x + to.x) / 2} ${to.y} ${to.x} ${to.y}`
      : `C${from.x} ${(from.y + to.y) / 2} ${to.x} ${(from.y + to.y) / 2} ${to.x} ${to.y}`;
    path += bend;
  }
  return path;
}

const move = ({ x, y }, isLying, length) => (isLying ? { x: x + length, y } : { x, y: y + length });
