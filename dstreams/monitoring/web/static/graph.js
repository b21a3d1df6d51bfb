// The graph of a stream or query, drawn by the driver as for notebooks. Adds the sizes of state, and
// shows the same as a table.

import { el, scrolling, setText } from "./dom.js";
import { bytes, count, counted, shortened } from "./format.js";
import { FoldedTable, Table } from "./table.js";

const KINDS = { input: "input", step: "step", state: "with state", output: "output" };
const AGAIN_MS = 900; // between updates of the sizes of state

export class Graph {
  #sizes = new Map();
  #uids = new Map();
  #drawn = "";
  #updatedMs = -Infinity;

  constructor() {
    this.drawing = el("div", { class: "drawing" });
    const legend = el("ul", { class: "legend" }, ...Object.entries(KINDS).map(([kind, words]) =>
      el("li", {}, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }),
        el("span", { text: words }))));
    this.table = new FoldedTable("The same as a table", new Table("Steps of the graph", [
      { head: "Step", text: (node) => count(node.number), isNumber: true },
      { head: "Operation", text: (node) => shortened(node.operation), isName: true },
      { head: "Kind", text: (node) => KINDS[node.kind] ?? node.kind },
      { head: "uid", text: (node) => shortened(node.uid), isName: true },
      { head: "Parents", text: (node) => node.parents.join(", ") || "–" },
      { head: "Durable", text: (node) => node.durable || "–" },
      { head: "State", text: (node) => this.#sizes.get(node.uid) ?? "–" },
    ], (node) => node.number));
    this.node = el("div", {}, legend, scrolling(this.drawing, "Graph", "graph scroll"),
      this.table.node);
  }

  update(status) {
    const now = performance.now();
    const shape = `${status.run_id} ${status.graph.length}`;
    if (now - this.#updatedMs < AGAIN_MS && shape === this.#drawn) return;
    this.#updatedMs = now;
    this.#sizes = new Map(status.states.map((state) => [state.uid,
      `${counted(state.keys, "key")}, ${bytes(state.memory_bytes ?? state.written_bytes)}`]));
    this.#uids = new Map(status.graph.map((node) => [String(node.number), node.uid]));
    this.table.update(status.graph);
    if (shape !== this.#drawn) this.#fetch(shape, status);
    this.#fill();
  }

  async #fetch(shape, status) {
    this.#drawn = shape;
    this.drawing.replaceChildren();
    if (status.graph.length === 0) return;
    try {
      const answer = await fetch(`graph.svg?${new URLSearchParams({ stream: status.run_id })}`);
      if (!answer.ok) throw new Error(answer.statusText);
      const parsed = new DOMParser().parseFromString(await answer.text(), "image/svg+xml");
      if (shape !== this.#drawn) return; // another graph has been requested
      this.drawing.replaceChildren(document.importNode(parsed.documentElement, true));
      this.#fill();
    } catch {
      if (shape === this.#drawn) this.#drawn = ""; // retry with the next update
    }
  }

  #fill() {
    for (const text of this.drawing.querySelectorAll("text.size")) {
      setText(text, this.#sizes.get(this.#uids.get(text.dataset.node)) ?? "no state yet");
    }
  }
}
