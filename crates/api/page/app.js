// The views, and the way between them.

import { Away, get, setToken, takeToken } from "./api.js";
import { createView } from "./create.js";
import { el, setHidden, setText } from "./dom.js";
import { driveView } from "./drive.js";
import { drivesView } from "./drives.js";
import { eventsView } from "./events.js";
import { field, form, words } from "./form.js";
import { jobsView } from "./jobs.js";
import { poolsView, reactorsView } from "./machine.js";
import { Poller } from "./poll.js";

const VIEWS = [["#/", "Drives"], ["#/jobs", "Jobs"], ["#/events", "Events"], ["#/pools", "Pools"], ["#/reactors", "Reactors"]];

const [main, nav, away, note, version] = ["main", "nav", "away", "note", "version"].map((id) => document.getElementById(id));
let view = null, poller = null, isLocked = false, news = "";

const links = VIEWS.map(([href, name]) => el("a", { href }, name));
nav.append(el("ul", {}, links.map((link) => el("li", {}, link))));

// Shows that the daemon is away, or that it refuses the token; `null` after an answer.
function report(error) {
  if (error?.status === 401) return lock(error);
  const isAway = error instanceof Away;
  setText(away, isAway ? "The daemon does not answer. This page tries again every second, and goes on by itself." : error ? words(error) : "");
  setHidden(away, !error);
  main.classList.toggle("stale", isAway);
}

const page = {
  report,
  note: (text) => setText(note, text),
  // Goes to a view, which then shows this note.
  go: (hash, text = "") => { news = text; location.hash = hash; },
  refresh: () => poller?.round(),
};

function viewOf(hash) {
  const [, name, item] = hash.match(/^#\/([^/]*)\/?(.*)$/) ?? [];
  switch (name) {
    case "drive": return driveView(page, decodeURIComponent(item));
    case "new": return createView(page);
    case "jobs": return jobsView(page);
    case "events": return eventsView(page);
    case "pools": return poolsView();
    case "reactors": return reactorsView();
    default: return drivesView();
  }
}

function leave() {
  poller?.stop();
  view?.leave?.();
  poller = view = null;
}

function enter(next, isFirst) {
  const heading = el("h1", { tabindex: -1 }, next.title);
  const error = el("p", { class: "error", role: "alert" });
  main.replaceChildren(heading, error, next.node);
  document.title = `${next.title} – Sluice`;
  for (const link of links) {
    const isHere = link.textContent === next.title || (link.textContent === "Drives" && /^#\/(drive|new)/.test(location.hash));
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!isFirst) heading.focus();
  window.scrollTo(0, 0);
  if (!next.sources) return;
  poller = new Poller(next.sources, async (answers) => {
    try {
      await next.show(answers);
      setText(error, "");
    } catch (problem) {
      setText(error, words(problem));
    }
  }, report);
}

// Asks for the token.
function lock(error) {
  if (isLocked) return;
  isLocked = true;
  leave();
  const token = field("Token", { type: "password", hint: "Open the address that `sluice page` prints, or paste the token from its end." });
  const open = form([token], "Open the page", async () => {
    setToken(token.value.replace(/^.*#token=/, ""));
    await get("/v1/version");
    isLocked = false;
    start(false);
  });
  setHidden(away, true);
  enter({ title: "Locked", node: el("div", {}, el("p", { class: "error", role: "alert" }, words(error)), open.node) }, false);
}

function start(isFirst) {
  leave();
  view = viewOf(location.hash || "#/");
  enter(view, isFirst);
  get("/v1/version").then((own) => setText(version, own.version), () => {});
}

addEventListener("hashchange", () => {
  takeToken();
  isLocked = false;
  page.note(news);
  news = "";
  start(false);
});
takeToken();
start(true);
