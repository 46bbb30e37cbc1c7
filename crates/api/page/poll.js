// Reads the daemon once a second while the page is visible, and keeps the last minute of each drive's work.

import { Away, get } from "./api.js";

const INTERVAL_MS = 1000;

// Samples that a plot has.
export const SAMPLES = 60;

// Reads `sources`, a map of names to paths, and calls `show` with a map of answers, or of errors. A poller that is
// stopped calls nobody any more.
export class Poller {
  constructor(sources, show, report) {
    Object.assign(this, { sources, show, report, stopped: false });
    this.wake = () => { if (!document.hidden) this.round(); };
    document.addEventListener("visibilitychange", this.wake);
    this.round();
  }

  stop() {
    this.stopped = true;
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.wake);
  }

  // Reads at once, after a change.
  async round() {
    clearTimeout(this.timer);
    const turn = (this.turn = {});
    const names = Object.keys(this.sources);
    const answers = await Promise.allSettled(names.map((name) => get(this.sources[name])));
    if (this.stopped || turn !== this.turn) return;
    const failed = answers.find((answer) => answer.status === "rejected" && answer.reason instanceof Away);
    const refused = answers.find((answer) => answer.reason?.status === 401);
    this.report(failed?.reason ?? refused?.reason ?? null);
    if (!failed && !refused) {
      this.show(Object.fromEntries(names.map((name, index) => [name, answers[index].value ?? answers[index].reason])));
    }
    if (!this.stopped && !document.hidden) this.timer = setTimeout(() => this.round(), INTERVAL_MS);
  }
}

function quantile(buckets, part) {
  const total = buckets.reduce((sum, [, count]) => sum + count, 0);
  if (total === 0) return null;
  let below = 0;
  for (const [bound, count] of buckets) {
    below += count;
    if (below >= Math.max(1, Math.ceil(total * part))) return bound;
  }
  return null;
}

// All operations' buckets together, as a map of bounds to counts.
function histogram(latency) {
  const sum = new Map();
  for (const { buckets } of latency?.operations ?? []) {
    for (const { below_ns, count } of buckets) sum.set(below_ns, (sum.get(below_ns) ?? 0) + count);
  }
  return sum;
}

const histories = new Map();

const EMPTY = { iops: null, read: null, written: null, p50: null, p99: null };

// Samples of a drive, the latest last; `null` where nothing is known.
export const samples = (name) => histories.get(name)?.samples ?? [];

export const latest = (name) => samples(name).at(-1) ?? EMPTY;

// Adds a sample of each drive. `latency` is the list of their histograms.
export function record(drives, latency) {
  const now = performance.now();
  for (const drive of drives) {
    const own = histogram(latency.find((item) => item.drive === drive.name));
    const history = histories.get(drive.name) ?? { samples: [] };
    histories.set(drive.name, history);
    const { last } = history;
    history.last = { now, counters: drive.counters, histogram: own };
    if (!last) continue;
    const seconds = (now - last.now) / 1000;
    // The page was hidden, or the drive was opened again.
    const isNew = seconds > 4 || drive.counters.commands < last.counters.commands;
    history.samples.push(isNew ? EMPTY : sample(drive, own, last, seconds));
    if (history.samples.length > SAMPLES) history.samples.shift();
  }
  for (const name of histories.keys()) if (!drives.some((drive) => drive.name === name)) histories.delete(name);
}

function sample(drive, own, last, seconds) {
  const rate = (name) => (drive.counters[name] - last.counters[name]) / seconds;
  const buckets = [...own].map(([bound, count]) => [bound, count - (last.histogram.get(bound) ?? 0)]);
  buckets.sort((one, other) => one[0] - other[0]);
  return {
    iops: rate("commands"), read: rate("bytes_read"), written: rate("bytes_written"),
    p50: quantile(buckets, 0.5), p99: quantile(buckets, 0.99),
  };
}
