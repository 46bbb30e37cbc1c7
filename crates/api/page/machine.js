// The views of shared pools and of reactors.

import { cell, el, keyed, row, setHidden, setText, table } from "./dom.js";
import { count, percent, size, time } from "./format.js";
import { sparkline } from "./plot.js";
import { SAMPLES } from "./poll.js";

function poolRow({ name }) {
  const bar = el("meter", { min: 0, max: 1, low: 0.7, high: 0.9, optimum: 0, "aria-label": `Used part of ${name}` });
  const texts = {
    Type: (pool) => pool.type, Reactor: (pool) => pool.reactor, Size: (pool) => size(pool.size),
    Free: (pool) => size(pool.free), Users: (pool) => pool.users,
  };
  const cells = Object.entries(texts).map(([label, text]) => [cell(label), text]);
  const part = el("span");
  const node = row(el("th", { role: "rowheader", scope: "row" }, name), ...cells.map(([td]) => td), cell("Used", bar, part));
  return { node, update(pool) {
    cells.forEach(([td, text]) => setText(td, text(pool)));
    bar.value = 1 - pool.free / pool.size;
    setText(part, ` ${percent(bar.value)}`);
  } };
}

export function poolsView() {
  const list = table("Pools that several drives use", ["Name", "Type", "Reactor", "Size", "Free", "Users", "Used"]);
  const none = el("p", {}, "There are no pools: [[shared]] in the configuration makes some.");
  return { title: "Pools", node: el("div", {}, list.node, none), sources: { shared: "/v1/shared" }, show({ shared }) {
    if (!shared.shared) throw shared;
    keyed(list.body, shared.shared, (pool) => pool.name, poolRow);
    setHidden(list.node, shared.shared.length === 0);
    setHidden(none, shared.shared.length > 0);
  } };
}

function reactorRow({ reactor: number }) {
  const loads = [];
  let last = null;
  const spark = sparkline(`Load of reactor ${number} in the last minute`, percent, 1);
  const texts = {
    Core: ({ now }) => now.core ?? "any", Load: ({ load }) => percent(load), "Work/s": ({ work }) => count(work),
    "Syscalls/s": ({ calls }) => count(calls), "Sleeps/s": ({ sleeps }) => count(sleeps),
    "Longest turn": ({ now }) => time(now.longest_turn_ns),
  };
  const cells = Object.entries(texts).map(([label, text]) => [cell(label), text]);
  const node = row(el("th", { role: "rowheader", scope: "row" }, `Reactor ${number}`), ...cells.map(([td]) => td), cell("Load, 60 s", spark.node));
  return { node, update(reactor) {
    const now = { ...reactor, at: performance.now() };
    const seconds = last ? (now.at - last.at) / 1000 : 0;
    const rate = (name) => (seconds ? (now[name] - last[name]) / seconds : null);
    const load = seconds ? Math.min(1, Math.max(0, rate("busy_ns") / 1e9)) : null;
    loads.push(load);
    if (loads.length > SAMPLES) loads.shift();
    cells.forEach(([td, text]) => setText(td, text({ now, load, work: rate("commands"), calls: rate("syscalls"), sleeps: rate("sleeps") })));
    spark.update(loads);
    last = now;
  } };
}

export function reactorsView() {
  const list = table("Reactors", ["Reactor", "Core", "Load", "Work/s", "Syscalls/s", "Sleeps/s", "Longest turn", "Load, 60 s"]);
  return { title: "Reactors", node: list.node, sources: { reactors: "/v1/reactors" }, show({ reactors }) {
    if (!reactors.reactors) throw reactors;
    keyed(list.body, reactors.reactors, (reactor) => reactor.reactor, reactorRow);
  } };
}
