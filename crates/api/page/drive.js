// The view of one drive.

import { drivePath, get, post, remove } from "./api.js";
import { attachPart } from "./attach.js";
import { cell, el, keyed, row, setHidden, setText, table, terms, textRow } from "./dom.js";
import { count, megabytes, size, time } from "./format.js";
import { action, confirmDeletion, field, form, words } from "./form.js";
import { graph, inWords, tree } from "./graph.js";
import { jobsPart } from "./jobs.js";
import { plot } from "./plot.js";
import { record, samples } from "./poll.js";

function namespaceRow(page, name) {
  return ({ nsid }) => {
    const texts = {
      Data: (namespace) => [namespace.target, namespace.path ?? namespace.shared].filter(Boolean).join(" "),
      Size: (namespace) => size(namespace.size), Blocks: (namespace) => size(namespace.block_size),
      Functions: (namespace) => (namespace.functions ?? []).map((item) => item.function ?? item.kind).join(", "),
    };
    const cells = Object.entries(texts).map(([label, text]) => [cell(label), text]);
    const wanted = field(`New size of namespace ${nsid}`, { at: "size", placeholder: "such as 20GiB" });
    const grow = form([wanted], "Grow", async () => {
      await post(`${drivePath(name)}/resize`, { nsid, size: wanted.value });
      page.note(`Namespace ${nsid} of ${name} has its new size.`);
      wanted.control.value = "";
      page.refresh();
    }, { class: "inline" });
    const node = row(el("th", { role: "rowheader", scope: "row" }, `Namespace ${nsid}`), ...cells.map(([td]) => td), cell("Grow", grow.node));
    return { node, update: (namespace) => cells.forEach(([td, text]) => setText(td, text(namespace))) };
  };
}

function plots() {
  const all = [
    plot("I/O commands a second", [["IOPS", (sample) => sample.iops]], count),
    plot("Throughput", [["read", (sample) => sample.read], ["written", (sample) => sample.written]], megabytes),
    plot("Latency", [["p50", (sample) => sample.p50], ["p99", (sample) => sample.p99]], time),
  ];
  return { node: el("div", { class: "plots" }, all.map(({ node }) => node)), update: (list) => all.forEach((one) => one.update(list)) };
}

// The states of the sets of a drive, from their functions' own answers.
async function setsOf(path, functions) {
  const sets = functions.filter((item) => ["mirror", "replicate"].includes(item.function));
  const status = async ({ number }) => {
    try {
      const { answer } = await post(`${path}/functions/${number}/control`, { text: "status", quiesce: false });
      const found = JSON.parse(answer);
      return { ...found, members: found.members ?? ["in sync", found.state] };
    } catch {
      return {};
    }
  };
  return Promise.all(sets.map(status));
}

function memberLines(functions, sets) {
  const owners = functions.filter((item) => ["mirror", "replicate"].includes(item.function));
  return sets.flatMap((set, index) => (set.members ?? []).map((state, number) => ({
    key: `${owners[index].number} ${number}`, set: `${owners[index].function} of namespace ${owners[index].nsid}`, number, state,
    stale: number && set.stale_bytes ? size(set.stale_bytes) : "",
  })));
}

export function driveView(page, name) {
  const path = drivePath(name);
  const facts = terms({
    State: (drive) => drive.state, "Made by": (drive) => (drive.origin === "declared" ? "the configuration file" : "a caller of the API"),
    Reactor: (drive) => String(drive.reactor), "In flight": (drive) => String(drive.in_flight), Commands: (drive) => count(drive.counters.commands),
    Errors: (drive) => String(drive.counters.errors), Stalls: (drive) => drive.stalls && String(drive.stalls), Serial: (drive) => drive.serial,
    NQN: (drive) => drive.subnqn, Hosts: (drive) => (drive.hosts ?? []).join(", "),
  }, ["NQN", "Hosts"]);
  const problem = el("p", { class: "error", role: "alert" });
  const open = action("Try to open it again", async () => { await post(`${path}/open`); page.refresh(); });
  const failed = el("section", { hidden: true }, problem, open.node);
  const stack = el("div", { class: "scroll", role: "region", "aria-label": "Stack", tabindex: 0 });
  const namespaces = table("Namespaces", ["Namespace", "Data", "Size", "Blocks", "Functions", "Grow"]);
  const members = table("Members of sets", ["Set", "Member", "State", "To be copied"]);
  const behind = table("NVMe devices", ["Device", "State", "Sent", "Losses"]);
  const sets = el("section", { hidden: true }, el("h2", {}, "Members of sets"), members.node);
  const devices = el("section", { hidden: true }, el("h2", {}, "NVMe devices"), behind.node);
  const [attach, jobs, live] = [attachPart(), jobsPart(page), plots()];
  const unmeasured = el("p", { class: "hint", hidden: true }, "Latency is not measured: set latency = true in [metrics] of the configuration.");
  let now = null, drawn = "", redraw = () => {};
  const erase = el("button", { type: "button", class: "danger", onclick: () => confirmDeletion(name, now?.state === "connected", async (force) => {
    await remove(`${path}${force ? "?force=true" : ""}`);
    page.go("#/", `Drive ${name} is deleted. Its files stay.`);
  }) }, "Delete the drive");
  const node = el("div", {}, failed, facts.node, live.node, unmeasured,
    el("section", {}, el("h2", {}, "Stack"), stack),
    el("section", {}, el("h2", {}, "Namespaces"), namespaces.node), sets, devices, attach.node,
    el("section", {}, el("h2", {}, "Jobs"), jobs.node), el("section", {}, el("h2", {}, "Delete"), erase));

  const draw = (root) => {
    drawn = inWords(root);
    redraw = () => stack.replaceChildren(graph(root, stack.clientWidth - 8));
    redraw();
  };
  new ResizeObserver(() => redraw()).observe(node);

  async function show({ drive, drives, latency, jobs: work }) {
    if (!drive.name) throw drive;
    now = drive;
    if (drives.drives) record(drives.drives, latency.drives ?? []);
    facts.update(drive);
    setHidden(failed, !drive.problem);
    [live, attach].forEach((part) => setHidden(part.node, drive.state === "failed"));
    setText(problem, drive.problem ? words({ message: drive.problem.error, hint: drive.problem.hint }) : "");
    live.update(samples(name));
    setHidden(unmeasured, drive.state === "failed" || Boolean(latency.drives?.some((item) => item.drive === name)));
    keyed(namespaces.body, drive.namespaces, (item) => item.nsid, namespaceRow(page, name));
    attach.update(drive);
    jobs.update((work.jobs ?? []).filter((job) => job.drive === name));
    keyed(behind.body, drive.devices ?? [], (item) => `${item.nsid} ${item.device} ${item.first_block}`, () => textRow({
      Device: (item) => item.device, State: (item) => (item.connected ? item.access ?? "connected" : "lost"),
      Sent: (item) => count(item.sent), Losses: (item) => item.losses,
    }));
    setHidden(devices, !drive.devices?.length);
    const own = drive.state === "failed" ? [] : await get(`${path}/functions`).then((found) => found.functions, () => []);
    const states = await setsOf(path, own);
    keyed(members.body, memberLines(own, states), (line) => line.key, () => textRow({
      Set: (line) => line.set, Member: (line) => line.number, State: (line) => line.state, "To be copied": (line) => line.stale,
    }));
    setHidden(sets, states.length === 0);
    const root = tree(drive, states);
    // The graph is drawn again only when it is another one, or the window is.
    if (inWords(root) !== drawn) draw(root);
  }
  return { title: `Drive ${name}`, node, show, sources: {
    drive: path, drives: "/v1/drives", latency: "/v1/latency", jobs: "/v1/jobs",
  } };
}
