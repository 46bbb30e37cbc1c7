// The view of background work.

import { post } from "./api.js";
import { cell, el, keyed, row, setHidden, setText, table } from "./dom.js";
import { duration, megabytes, percent, size } from "./format.js";
import { action } from "./form.js";

const ORDERS = { pause: "Pause", resume: "Resume", cancel: "Cancel" };

function jobRow(page) {
  return (job) => {
    const bar = el("progress", { max: 1, "aria-label": `Progress of ${job.job} of ${job.drive}` });
    const part = el("span"), state = cell("State"), rate = cell("Rate"), rest = cell("Left"), detail = cell("Detail");
    const buttons = Object.entries(ORDERS).map(([verb, label]) => [verb, action(label, async () => {
      await post(`/v1/jobs/${encodeURIComponent(job.id)}/${verb}`);
      page.refresh();
    }, { "aria-label": `${label} ${job.job} of ${job.drive}` })]);
    const orders = cell("Orders", buttons.map(([, button]) => button.node));
    const node = row(el("th", { role: "rowheader", scope: "row" }, `${job.drive}: ${job.job}`),
      state, cell("Done", bar, part), rate, rest, detail, orders);
    return { node, update(now) {
      setText(state, now.state);
      state.className = `state ${now.state}`;
      bar.value = now.total ? now.done / now.total : now.state === "done" ? 1 : 0;
      setText(part, now.total ? ` ${percent(now.done / now.total)} of ${size(now.total)}` : "");
      setText(rate, now.state === "running" ? megabytes(now.bytes_s) : "");
      setText(rest, duration(now.eta_s));
      setText(detail, now.detail ?? "");
      buttons.forEach(([verb, { button }]) => setHidden(button, !(now.accepts ?? []).includes(verb)));
      orders.classList.toggle("none", !now.accepts?.some((verb) => verb in ORDERS));
    } };
  };
}

// A list of jobs, of one drive or of all.
export function jobsPart(page) {
  const list = table("Jobs", ["Job", "State", "Done", "Rate", "Left", "Detail", "Orders"]);
  const none = el("p", {}, "There are no jobs.");
  return { node: el("div", {}, list.node, none), update(jobs) {
    keyed(list.body, jobs, (job) => job.id, jobRow(page));
    setHidden(list.node, jobs.length === 0);
    setHidden(none, jobs.length > 0);
  } };
}

export function jobsView(page) {
  const part = jobsPart(page);
  return { title: "Jobs", node: part.node, sources: { jobs: "/v1/jobs" }, show({ jobs }) {
    if (!jobs.jobs) throw jobs;
    part.update(jobs.jobs);
  } };
}
