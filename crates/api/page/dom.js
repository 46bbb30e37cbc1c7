// Makes elements from names, attributes and text. Text is never taken for markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat(3).filter((child) => child != null && child !== false));
  return node;
}

export const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);

export const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, name), attributes, children);

// Sets a text, if it is another one: a screen reader repeats no text that stays.
export function setText(node, text) {
  text = String(text);
  if (node.textContent !== text) node.textContent = text;
}

export function setHidden(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

const parts = new WeakMap();

// Shows `items` as children of `parent`. `make` returns { node, update } for a new item. Nodes of items that stay are
// kept, so that the focus and what is typed stay, too.
export function keyed(parent, items, key, make) {
  const old = parts.get(parent) ?? new Map();
  const now = new Map(items.map((item) => [key(item), old.get(key(item)) ?? make(item)]));
  for (const [id, part] of old) if (!now.has(id)) part.node.remove();
  let at = parent.firstChild;
  for (const item of items) {
    const part = now.get(key(item));
    part.update?.(item);
    if (part.node === at) at = at.nextSibling;
    else parent.insertBefore(part.node, at);
  }
  parts.set(parent, now);
}

// A table whose rows are cards on a narrow screen. The roles stay when CSS changes the display.
export function table(caption, columns) {
  const body = el("tbody", { role: "rowgroup" });
  const heads = columns.map((name) => el("th", { role: "columnheader", scope: "col" }, name));
  const node = el("table", { role: "table" },
    el("caption", { class: "unseen" }, caption),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, heads)),
    body);
  return { node, body };
}

export const row = (...cells) => el("tr", { role: "row" }, cells);

export const cell = (label, ...children) => el("td", { role: "cell", "data-label": label }, children);

// A row whose cells have one text each: `texts` maps column names to functions of the item.
export function textRow(texts) {
  const cells = Object.entries(texts).map(([label, text]) => [cell(label), text]);
  return { node: row(...cells.map(([node]) => node)), update: (item) => cells.forEach(([node, text]) => setText(node, text(item))) };
}

// A list of terms with their values: `texts` maps names to functions of the item. Empty values are left
// out; `wide` names those that need room.
export function terms(texts, wide = []) {
  const list = el("dl", { class: "terms" });
  const update = (item) => {
    const shown = Object.entries(texts).map(([name, text]) => [name, text(item)]).filter(([, text]) => text);
    keyed(list, shown, ([name]) => name, ([name]) => {
      const value = el("dd");
      return { node: el("div", { class: wide.includes(name) && "wide" }, el("dt", {}, name), value), update: ([, text]) => setText(value, text) };
    });
  };
  return { node: list, update };
}
