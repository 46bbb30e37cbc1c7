// The view of events, as they come.

import { Away, get, lines } from "./api.js";
import { keyed, el, setText, table, textRow } from "./dom.js";
import { clock } from "./format.js";
import { field } from "./form.js";

const SHOWN_MAX = 300;

const RETRY_MS = 1000;

const wait = (ms) => new Promise((done) => setTimeout(done, ms));

export function eventsView(page) {
  const filter = field("Show only events with", { type: "search" });
  const list = table("Events, the last one first", ["Time", "Event", "Drive", "Text"]);
  const sum = el("p", { class: "sum" });
  const node = el("div", {}, filter.node, sum, list.node);
  const end = new AbortController();
  let events = [], process = null, due = false;

  const show = () => {
    due = false;
    const word = filter.value.toLowerCase();
    const found = events.filter((event) => `${event.event} ${event.drive ?? ""} ${event.text}`.toLowerCase().includes(word));
    keyed(list.body, found.slice(-SHOWN_MAX).reverse(), (event) => event.key, () => textRow({
      Time: (event) => clock(event.time_ms), Event: (event) => event.event.replaceAll("_", " "),
      Drive: (event) => event.drive ?? "", Text: (event) => event.text,
    }));
    setText(sum, `${found.length} events`);
  };
  filter.control.addEventListener("input", show);

  // Reads until the stream ends. A number counts for one process of the daemon only.
  const read = async () => {
    const { pid } = await get("/v1/version");
    const since = pid === process ? events.at(-1)?.number ?? 0 : 0;
    process = pid;
    page.report(null);
    for await (const event of lines(`/v1/events?since=${since}&follow=true`, end.signal)) {
      events.push({ ...event, key: `${pid} ${event.number} ${event.event}` });
      if (events.length > 2 * SHOWN_MAX) events = events.slice(-SHOWN_MAX);
      if (!due) requestAnimationFrame(show);
      due = true;
    }
  };
  const follow = async () => {
    while (!end.signal.aborted) {
      try {
        await read();
      } catch (error) {
        if (end.signal.aborted) return;
        page.report(error);
        if (!(error instanceof Away) && error.status === 401) return;
      }
      await wait(RETRY_MS);
    }
  };
  follow();
  return { title: "Events", node, leave: () => end.abort() };
}
