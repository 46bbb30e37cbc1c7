// Calls of the daemon, with the token of this tab.

const KEY = "sluice-token";

// Reasons why a call failed: the daemon refused it, or did not answer.
export class Refused extends Error {
  constructor(status, { error, hint }) {
    super(error);
    this.status = status;
    this.hint = hint;
  }
}

export class Away extends Error {}

// Takes the token out of the address, so that neither the history nor a bookmark has it.
export function takeToken() {
  const found = location.hash.match(/^#token=([\w-]+)$/);
  if (!found) return;
  sessionStorage.setItem(KEY, found[1]);
  history.replaceState(null, "", "/#/");
}

export const setToken = (token) => sessionStorage.setItem(KEY, token);

export const hasToken = () => sessionStorage.getItem(KEY) !== null;

async function send(method, path, body, signal) {
  const token = sessionStorage.getItem(KEY);
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, body, signal, credentials: "omit", redirect: "error" });
  } catch (error) {
    throw new Away(error.message);
  }
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({ error: `the daemon answered ${answer.status}` }));
  throw new Refused(answer.status, problem);
}

async function json(answer) {
  const text = await answer.text().catch((error) => { throw new Away(error.message); });
  return text === "" ? null : JSON.parse(text);
}

// Time limit of a call that only reads.
const READ_LIMIT_MS = 10_000;

export const get = async (path) => json(await send("GET", path, undefined, AbortSignal.timeout(READ_LIMIT_MS)));

// Calls that change something have no time limit: a large file may take minutes.
export const post = async (path, body) => json(await send("POST", path, JSON.stringify(body)));

export const postText = async (path, text) => json(await send("POST", path, text));

export const remove = async (path) => json(await send("DELETE", path));

// The lines of an answer, each parsed, as they come.
export async function* lines(path, signal) {
  const answer = await send("GET", path, undefined, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => { throw new Away(error.message); });
    if (done) return;
    const parts = (text + value).split("\n");
    text = parts.pop();
    for (const part of parts) yield JSON.parse(part);
  }
}

export const drivePath = (name) => `/v1/drives/${encodeURIComponent(name)}`;
