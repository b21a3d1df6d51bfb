// Creates and changes elements. Everything from a stream is set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

/** Create an HTML element. `text` and `on` are special; a child may be null. */
export function el(tag, attributes = {}, ...children) {
  return made(document.createElement(tag), attributes, children);
}

/** Create an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return made(document.createElementNS(SVG, tag), attributes, children);
}

function made(node, { text, on, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) setAttribute(node, name, value);
  if (text !== undefined) node.textContent = text;
  for (const [event, listener] of Object.entries(on ?? {})) node.addEventListener(event, listener);
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** Set an attribute if it changes; null and false remove it. */
export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value === true ? "" : value)) {
    node.setAttribute(name, value === true ? "" : value);
  }
}

/** Set the text of an element if it changes, to avoid needless layouts. */
export function setText(node, text) {
  const only = node.firstChild;
  if (only !== null && only === node.lastChild && only.nodeType === Node.TEXT_NODE) {
    if (only.data !== text) only.data = text;
  } else if (only !== null || text !== "") {
    node.textContent = text;
  }
}

/** Show or hide an element. */
export function show(node, isShown) {
  if (node.hidden === isShown) node.hidden = !isShown;
}

/** Make *nodes* the children of an element, in order, moving few. */
export function setChildren(parent, nodes) {
  const wanted = new Set(nodes);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  nodes.forEach((node, at) => {
    if (parent.children[at] !== node) parent.insertBefore(node, parent.children[at] ?? null);
  });
}

const widths = new ResizeObserver((entries) => {
  for (const box of new Set(entries.map(({ target }) => target.closest(".scroll")))) {
    setAttribute(box, "tabindex", box.scrollWidth > box.clientWidth ? 0 : null);
  }
});

/** A box that scrolls if *content* is too wide, and only then takes the keyboard focus. */
export function scrolling(content, label, className = "scroll") {
  const box = el("div", { class: className, role: "group", "aria-label": label }, content);
  widths.observe(box);
  widths.observe(content);
  return box;
}

/** Keeps the object of each key as long as every call of `of` has the key. */
export class Keyed {
  #nodes = new Map();

  /** Return the object of each key, in order; `make(item)` creates missing ones. */
  of(items, keyOf, make) {
    const kept = new Map();
    for (const item of items) {
      let key = keyOf(item);
      while (kept.has(key)) key = `${key} again`; // names may be duplicate
      kept.set(key, kept.get(key) ?? this.#nodes.get(key) ?? make(item));
    }
    this.#nodes = kept;
    return [...kept.values()];
  }
}
