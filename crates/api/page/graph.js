// The stack of a drive as a graph, from its hosts down to its targets.

import { svg } from "./dom.js";
import { basename, plural, size } from "./format.js";

const WIDTH = 156, HEIGHT = 46, GAP = 14, LEVEL = 72, INDENT = 18;

const LETTERS = 21;

const short = (text) => (text.length <= LETTERS ? text : `${text.slice(0, 11)}…${text.slice(-9)}`);

const node = (title, text, state, children = []) => ({ title, text, state, children });

// What a layer keeps its data in.
function targetText({ target, path, shared, nvme, nvme_tcp: remote, size: bytes }) {
  const device = remote?.subnqn ?? remote?.nqn ?? nvme?.socket ?? nvme?.pci ?? nvme?.address;
  return (path && basename(path)) ?? shared ?? device ?? size(bytes) ?? target;
}

const leaf = (layer, state, name) => node(name ?? layer.target, targetText(layer), state);

// The functions over a target, the topmost first. `members` has the states of a set by its function's number.
function stack(functions, bottom, members) {
  const [top, ...rest] = functions;
  if (!top) return bottom;
  const name = top.function ?? top.command?.[0] ?? top.socket ?? top.kind;
  const layers = top.layers ?? [];
  const isSet = ["mirror", "replicate"].includes(top.function);
  const states = isSet ? members.shift() : undefined;
  const below = stack(rest, bottom, members);
  if (states?.members) below.state = states.members[0];
  const others = layers.map((layer, index) => {
    const isLog = isSet && index === layers.length - 1;
    const own = leaf(layer, isLog ? undefined : states?.members?.[index + 1], isLog ? "log" : undefined);
    return stack(layer.functions ?? [], own, []);
  });
  return node(basename(name), states?.state ?? (top.kind === "uif" ? top.place ?? "process" : top.kind), undefined, [below, ...others]);
}

// The whole tree of a drive.
export function tree(drive, sets) {
  const members = [...sets];
  const namespaces = drive.namespaces.map((namespace) => {
    const first = stack(namespace.functions ?? [], leaf(namespace), members);
    const paths = (namespace.paths ?? []).map((path) => stack(path.functions ?? [], leaf(path), members));
    return node(`namespace ${namespace.nsid}`, size(namespace.size), undefined, [first, ...paths]);
  });
  const below = drive.classifier ? [node("classifier", basename(drive.classifier.object), undefined, namespaces)] : namespaces;
  const clients = [drive.clients && plural(drive.clients, "machine"), drive.hosts?.length && plural(drive.hosts.length, "host")];
  return node("hosts", clients.filter(Boolean).join(", ") || "none connected", undefined,
    [node(drive.name, drive.state, drive.state, below)]);
}

// Gives each node its place. A leaf takes a column; other nodes stand over the middle of theirs.
function place(item, depth, next) {
  item.y = depth * LEVEL;
  const columns = item.children.map((child) => place(child, depth + 1, next));
  item.x = columns.length ? (columns[0] + columns.at(-1)) / 2 : next.column++ * (WIDTH + GAP);
  return item.x;
}

const isBad = (state) => ["failed", "lost", "out", "degraded"].includes(state);

// Gives each node a line of its own, for a narrow window.
function placeLines(item, depth, next) {
  item.x = depth * INDENT;
  item.y = next.line++ * (HEIGHT + GAP);
  item.children.forEach((child) => placeLines(child, depth + 1, next));
}

function edge(from, to, isLines) {
  if (isLines) return `M${from.x + INDENT / 2} ${from.y + HEIGHT}V${to.y + HEIGHT / 2}H${to.x}`;
  const [x, y, end] = [from.x + WIDTH / 2, from.y + HEIGHT, to.x + WIDTH / 2];
  return `M${x} ${y}C${x} ${y + 14} ${end} ${y + 12} ${end} ${to.y}`;
}

function draw(item, parts, isLines) {
  for (const child of item.children) {
    parts.edges.push(svg("path", { class: "edge", d: edge(item, child, isLines) }));
    draw(child, parts, isLines);
  }
  parts.width = Math.max(parts.width, item.x + WIDTH);
  parts.height = Math.max(parts.height, item.y + HEIGHT);
  const text = item.state && item.state !== item.text ? `${item.text} · ${item.state}` : item.text;
  parts.boxes.push(svg("g", { class: isBad(item.state) ? "box bad" : "box", transform: `translate(${item.x} ${item.y})` },
    svg("title", {}, `${item.title}: ${text}`),
    svg("rect", { width: WIDTH, height: HEIGHT, rx: 6 }),
    svg("text", { x: 10, y: 19, class: "name" }, short(item.title)),
    svg("text", { x: 10, y: 36 }, short(text))));
}

// The graph in words, for those who do not see it.
export function inWords(item) {
  const own = `${item.title} (${[item.text, item.state !== item.text && item.state].filter(Boolean).join(", ")})`;
  const below = item.children.map(inWords).join("; ");
  return below ? `${own} over ${item.children.length > 1 ? `[${below}]` : below}` : own;
}

// The graph, of lines below each other if the room is too narrow for one beside the other.
export function graph(root, room) {
  const next = { column: 0, line: 0 }, parts = { edges: [], boxes: [], width: 0, height: 0 };
  place(root, 0, next);
  const isLines = next.column * (WIDTH + GAP) > room;
  if (isLines) placeLines(root, 0, next);
  draw(root, parts, isLines);
  const [width, height] = [parts.width + 2, parts.height + 2];
  return svg("svg", { class: "graph", role: "img", "aria-label": inWords(root), width, height, viewBox: `-1 -1 ${width} ${height}` },
    parts.edges, parts.boxes);
}
