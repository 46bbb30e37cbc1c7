// Words with which a virtual machine monitor attaches a drive, as those of `sluice drive attach`.

import { el, keyed, setText } from "./dom.js";
import { action } from "./form.js";

const plain = /^[\w\-./=,:+@%]+$/;

// A word in shell syntax.
const quoted = (word) => (plain.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

const MONITORS = [
  ["QEMU", (socket) => `-device ${quoted(`{"driver":"vfio-user-pci","socket":{"type":"unix","path":${JSON.stringify(socket)}}}`)}`,
    "-object memory-backend-memfd,id=mem0,size=SIZE,share=on -machine memory-backend=mem0"],
  ["Cloud Hypervisor", (socket) => `--user-device ${quoted(`socket=${socket}`)}`, "--memory size=SIZE,shared=on"],
];

function words(title) {
  const code = el("code");
  const copy = action("Copy", () => navigator.clipboard.writeText(code.textContent), { "aria-label": `Copy the words for ${title}` });
  return { node: el("div", { class: "words" }, el("pre", { tabindex: 0 }, code), copy.node), update: (text) => setText(code, text) };
}

// The sockets of a drive, each with what attaches it.
export function attachPart() {
  const list = el("div");
  const node = el("section", { "aria-labelledby": "attach" }, el("h2", { id: "attach" }, "Attach"), list);
  const make = (socket) => el("section", {},
    el("h3", {}, el("code", {}, socket)),
    MONITORS.map(([monitor, device, memory]) => {
      const own = words(`${monitor} and ${socket}`);
      own.update(device(socket));
      return el("div", {}, el("h4", {}, monitor), own.node,
        el("p", { class: "hint" }, "The guest's memory must be shared, with SIZE as large as it: ", el("code", {}, memory)));
    }));
  const hosts = el("p");
  node.append(hosts);
  return { node, update(drive) {
    const sockets = [drive.socket, ...(drive.more_sockets ?? [])].filter(Boolean);
    keyed(list, sockets, (socket) => socket, (socket) => ({ node: make(socket) }));
    setText(hosts, drive.tcp ? `Hosts on the network connect to ${drive.subnqn}.` : "");
  } };
}
