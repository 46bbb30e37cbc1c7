// The view that makes a drive.

import { post, postText } from "./api.js";
import { el } from "./dom.js";
import { field, form, select, showFields } from "./form.js";

const TARGETS = {
  file: "a file or block device",
  memory: "memory of the daemon",
  "memory-pool": "a shared pool of memory",
  null: "nothing: reads are zeros, writes are dropped",
  json: "described in JSON",
};

const EXAMPLE = `{ "name": "web", "namespaces": [
  { "target": "file", "path": "/srv/web.img", "size": "20GiB" } ] }`;

export function createView(page) {
  const name = field("Name", { at: "name", required: true, hint: "Letters, digits, -, _ and ." });
  const target = select("The data is in", TARGETS, { at: "namespaces[0].target" });
  const path = field("Path", { at: "namespaces[0].path", hint: "Absolute, on the daemon's machine." });
  const shared = field("Pool", { at: "namespaces[0].shared", hint: "Its name, as among the pools." });
  const size = field("Size", { at: "namespaces[0].size", hint: "Such as 20GiB. May be left out for a file that exists." });
  const text = field("Description", { hint: "As for POST /v1/drives.", input: el("textarea", { rows: 8, spellcheck: "false" }, EXAMPLE) });
  const all = [name, target, path, shared, size, text];
  const arrange = () => showFields(all, {
    file: [name, target, path, size], "memory-pool": [name, target, shared, size], json: [target, text],
  }[target.value] ?? [name, target, size]);
  target.control.addEventListener("change", arrange);
  arrange();

  const send = () => {
    if (target.value === "json") return postText("/v1/drives", text.value);
    const namespace = { target: target.value };
    if (size.value) namespace.size = size.value;
    if (target.value === "file") namespace.path = path.value;
    if (target.value === "memory-pool") namespace.shared = shared.value;
    return post("/v1/drives", { name: name.value, namespaces: [namespace] });
  };
  const made = form(all, "Make the drive", async () => {
    const drive = await send();
    page.go(`#/drive/${encodeURIComponent(drive.name)}`, `Drive ${drive.name} is made.`);
  });
  return { title: "Make a drive", node: made.node };
}

