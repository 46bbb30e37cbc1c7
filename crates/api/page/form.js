// Forms whose errors stand beside their fields, and the question before something is deleted.

import { el, setHidden, setText } from "./dom.js";

let numbers = 0;

// A labelled input. `at` is the key by which the daemon's errors name it.
export function field(label, { at, hint, input, ...attributes }) {
  const id = `f${++numbers}`;
  const error = el("p", { id: `${id}e`, class: "error", role: "alert" });
  const help = hint && el("p", { id: `${id}h`, class: "hint" }, hint);
  const control = input ?? el("input", { autocomplete: "off", spellcheck: "false", ...attributes });
  control.id = id;
  control.setAttribute("aria-describedby", `${id}e${help ? ` ${id}h` : ""}`);
  const node = el("div", { class: "field" }, el("label", { for: id }, label), control, help, error);
  return { node, at, control, get value() { return control.value.trim(); }, complain(text) {
    setText(error, text);
    control.setAttribute("aria-invalid", text ? "true" : "false");
  } };
}

export function select(label, options, more = {}) {
  const input = el("select", {}, Object.entries(options).map(([value, text]) => el("option", { value }, text)));
  return field(label, { ...more, input });
}

// The error of a call in words, with the remedy.
export const words = (error) => (error.hint ? `${error.message} (${error.hint})` : error.message);

// The field that an error is about: that of the key before the colon, or else one whose value the error quotes.
function about(error, fields) {
  const key = error.message.match(/^([\w.[\]]+): /)?.[1];
  const shown = fields.filter((field) => !field.node.hidden);
  return shown.find((field) => field.at === key)
    ?? shown.find(({ value }) => value.length > 2 && (error.message.includes(`\`${value}\``) || error.message.includes(`${value}:`)))
    ?? (shown.length === 1 ? shown[0] : undefined);
}

// Runs a change that a button starts: the button is busy meanwhile, and an error goes to `complain`.
export async function run(button, complain, change) {
  if (button.getAttribute("aria-disabled") === "true") return;
  button.setAttribute("aria-disabled", "true");
  complain(null);
  try {
    await change();
  } catch (error) {
    complain(error);
  } finally {
    button.removeAttribute("aria-disabled");
  }
}

// A form. An error is shown at its field, which gets the focus, or else above the button.
export function form(fields, label, submit, attributes = {}) {
  const button = el("button", { type: "submit" }, label);
  const error = el("p", { class: "error", role: "alert" });
  const complain = (problem) => {
    fields.forEach((field) => field.complain(""));
    const place = problem && about(problem, fields);
    setText(error, problem && !place ? words(problem) : "");
    place?.complain(words(problem));
    (place?.control ?? (problem && button))?.focus();
  };
  const node = el("form", { novalidate: true, ...attributes, onsubmit: (event) => {
    event.preventDefault();
    run(button, complain, submit);
  } }, fields.map((field) => field.node), error, button);
  return { node, complain };
}

// A button that runs a change, with its error beside it.
export function action(label, change, attributes = {}) {
  const error = el("span", { class: "error", role: "alert" });
  const button = el("button", { type: "button", ...attributes, onclick: () =>
    run(button, (problem) => setText(error, problem ? words(problem) : ""), change) }, label);
  return { node: el("span", { class: "action" }, button, error), button };
}

// Has the user type the name of a drive before `change` deletes it.
export function confirmDeletion(name, isUsed, change) {
  const typed = field(`Type ${name} to delete the drive`, {});
  const force = el("input", { type: "checkbox", id: "force" });
  const close = () => dialog.close();
  const sure = form([typed], "Delete", async () => {
    if (typed.value !== name) throw new Error(`the name is ${name}`);
    await change(force.checked);
    close();
  });
  sure.node.lastChild.className = "danger";
  sure.node.append(el("button", { type: "button", onclick: close }, "Cancel"));
  sure.node.lastChild.before(" ");
  if (isUsed) {
    typed.node.after(el("p", {}, force, el("label", { for: "force" }, " also while a client uses it, which will lose it")));
  }
  const dialog = el("dialog", { "aria-labelledby": "ask", onclose: () => dialog.remove() },
    el("h2", { id: "ask" }, `Delete drive ${name}?`), el("p", {}, "Its files stay."), sure.node);
  document.body.append(dialog);
  dialog.showModal();
  typed.control.focus();
}

// Shows only these fields of a form.
export function showFields(fields, shown) {
  fields.forEach((field) => setHidden(field.node, !shown.includes(field)));
}
