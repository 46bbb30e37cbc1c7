// The view of all drives.

import { cell, el, keyed, row, setHidden, setText, table } from "./dom.js";
import { count, megabytes, plural, size, time } from "./format.js";
import { latest, record, samples } from "./poll.js";
import { sparkline } from "./plot.js";

function driveRow({ name }) {
  const texts = {
    State: (drive) => drive.state,
    Size: (drive) => size(drive.namespaces.reduce((sum, namespace) => (namespace.size == null ? sum : sum + namespace.size), null)),
    Clients: (drive) => drive.clients + (drive.hosts?.length ?? 0),
    IOPS: () => count(latest(name).iops),
    Read: () => megabytes(latest(name).read),
    Written: () => megabytes(latest(name).written),
    "p99 latency": () => time(latest(name).p99),
  };
  const cells = Object.entries(texts).map(([label, text]) => [cell(label), text]);
  const spark = sparkline(`IOPS of ${name} in the last minute`, count);
  const slow = sparkline(`p99 latency of ${name} in the last minute`, time);
  const link = el("a", { href: `#/drive/${encodeURIComponent(name)}` }, name);
  const node = row(el("th", { role: "rowheader", scope: "row" }, link), ...cells.map(([td]) => td),
    cell("IOPS, 60 s", spark.node), cell("Latency, 60 s", slow.node));
  return { node, update(drive) {
    cells.forEach(([td, text]) => setText(td, text(drive)));
    cells[0][0].className = `state ${drive.state}`;
    spark.update(samples(name).map((sample) => sample.iops));
    slow.update(samples(name).map((sample) => sample.p99));
  } };
}

export function drivesView() {
  const list = table("All drives", ["Name", "State", "Size", "Clients", "IOPS", "Read", "Written", "p99 latency", "IOPS, 60 s", "Latency, 60 s"]);
  const sum = el("p", { class: "sum" });
  const unmeasured = el("p", { class: "hint", hidden: true }, "Latency is not measured: set latency = true in [metrics] of the configuration.");
  const node = el("div", {}, el("p", {}, el("a", { class: "button", href: "#/new" }, "Make a drive")), sum, list.node, unmeasured);
  return { title: "Drives", node, sources: { drives: "/v1/drives", latency: "/v1/latency" }, show({ drives, latency }) {
    if (!drives.drives) throw drives;
    const measured = latency.drives ?? [];
    record(drives.drives, measured);
    keyed(list.body, drives.drives, (drive) => drive.name, driveRow);
    const failed = drives.drives.filter((drive) => drive.state === "failed").length;
    setText(sum, `${plural(drives.drives.length, "drive")}${failed ? `, ${failed} failed` : ""}`);
    setHidden(list.node, drives.drives.length === 0);
    setHidden(unmeasured, measured.length > 0 || drives.drives.length === 0);
  } };
}
