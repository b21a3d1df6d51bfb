// Tables that keep their rows: unchanged elements are not touched.

import { Keyed, el, scrolling, setAttribute, setChildren, setText } from "./dom.js";

/**
 * A table with a caption, in a region that scrolls if it is too wide.
 *
 * A column is { head, text, isNumber, href, tone, isName, node }: `text(row)` returns the text,
 * `href(row)` its link, `tone(row)` a class, and `node(row)` an element instead of text. The first
 * column has the row headers.
 */
export class Table {
  #columns;
  #keyOf;
  #rows = new Keyed();
  #empty;

  constructor(caption, columns, keyOf, empty = "None.") {
    this.#columns = columns;
    this.#keyOf = keyOf;
    this.#empty = el("tr", {},
      el("td", { class: "empty", colspan: columns.length, text: empty }));
    this.body = el("tbody");
    const heads = columns.map(({ head, isNumber }) =>
      el("th", { scope: "col", class: isNumber ? "number" : "", text: head }));
    const table = el("table", {}, el("caption", { text: caption }),
      el("thead", {}, el("tr", {}, ...heads)), this.body);
    this.node = el("div", { class: "table" }, scrolling(table, caption));
  }

  update(rows) {
    const made = this.#rows.of(rows, this.#keyOf, () => this.#made());
    made.forEach((row, at) => this.#fill(row, rows[at]));
    setChildren(this.body, made.length === 0 ? [this.#empty] : made);
  }

  #made() {
    const cells = this.#columns.map(({ isNumber, isName, href, node }, at) => {
      const content = node !== undefined ? null
        : href !== undefined ? el("a") : isName ? el("bdi", { class: "name" }) : el("span");
      return el(at === 0 ? "th" : "td",
        { scope: at === 0 ? "row" : null, class: isNumber ? "number" : "" }, content);
    });
    return el("tr", {}, ...cells);
  }

  #fill(row, item) {
    this.#columns.forEach((column, at) => {
      const cell = row.children[at];
      if (column.node !== undefined) {
        const node = column.node(item, cell.firstChild);
        if (node !== cell.firstChild) cell.replaceChildren(...(node === null ? [] : [node]));
        return;
      }
      const [content] = cell.children;
      setText(content, column.text(item));
      if (column.href !== undefined) setAttribute(content, "href", column.href(item));
      if (column.tone !== undefined) content.className = column.tone(item);
    });
  }
}

/** A collapsed table, filled while it is open. */
export class FoldedTable {
  #rows = [];

  constructor(summary, table) {
    this.table = table;
    this.node = el("details", { on: { toggle: () => this.update(this.#rows) } },
      el("summary", { text: summary }), table.node);
  }

  update(rows) {
    this.#rows = rows;
    if (this.node.open) this.table.update(rows);
  }
}

/** A list of `[term, text, tone]`; those without a text are skipped. */
export class Facts {
  #rows = new Keyed();

  constructor(className = "facts") {
    this.node = el("dl", { class: className });
  }

  update(facts) {
    const shown = facts.filter(([, text]) => text !== null && text !== undefined);
    const rows = this.#rows.of(shown, ([term]) => term, ([term]) =>
      el("div", {}, el("dt", { text: term }), el("dd", {}, el("bdi"))));
    rows.forEach((row, at) => {
      const [, text, tone] = shown[at];
      setText(row.lastChild.firstChild, text);
      row.className = tone ?? "";
    });
    setChildren(this.node, rows);
  }
}

/** The key figures: `[term, number, description, tone]`. */
export class Figures {
  #rows = new Keyed();

  constructor() {
    this.node = el("dl", { class: "figures" });
  }

  update(figures) {
    const shown = figures.filter(([, number]) => number !== null);
    const rows = this.#rows.of(shown, ([term]) => term, ([term]) =>
      el("div", {}, el("dt", { text: term }), el("dd", { class: "figure" }), el("dd")));
    rows.forEach((row, at) => {
      const [, number, what, tone] = shown[at];
      setText(row.children[1], number);
      setText(row.children[2], what);
      row.className = tone ?? "";
    });
    setChildren(this.node, rows);
  }
}
