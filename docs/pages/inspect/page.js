// The page "Inspect in the browser": what is dropped goes to the worker, its answer is shown.
// All text of files is shown as text, never as HTML.
const root = document.getElementById("inspect");
const [drop, form, state, shown] = [".drop", "form", ".state", ".answer"].map((one) => root.querySelector(one));
const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
let asked = { id: 0 };
let ready = false;
root.hidden = false;

worker.onmessage = ({ data }) => {
  if (data.ready) ready = true;
  if (data.id !== asked.id) return; // a later question is under way
  if (data.header) showHeader(data.header);
  if (data.targets) showTargets(data.targets);
  root.dataset.answered = data.targets || data.header?.problem ? "yes" : "in part";
};
worker.onerror = () => {
  state.textContent = "This copy of the site was built without Pyodide (npm ci --prefix docs brings it, then build again). " +
    "`vitconvert inspect FILE` says the same.";
};

function ask(question) {
  asked = { answers: {}, ...question, id: asked.id + 1 };
  root.dataset.answered = "no";
  state.textContent = ready ? "Reading the header…" : "Loading Python, then reading the header…";
  shown.replaceChildren();
  worker.postMessage(asked);
}

drop.querySelector("input").addEventListener("change", ({ target }) => {
  if (target.files.length) ask({ files: [...target.files] });
  target.value = ""; // so that the same file can be chosen again
});
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  root.addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", kind === "dragenter" || kind === "dragover");
    if (kind === "drop") filesOf(event.dataTransfer).then((files) => files.length && ask({ files }));
  });
}

// What is dropped, and the files of a folder that is.
async function filesOf({ items }) {
  const entries = [...items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
  const listed = (folder) => new Promise((found, failed) => folder.createReader().readEntries(found, failed));
  const opened = (entry) => new Promise((found, failed) => entry.file(found, failed));
  const inside = await Promise.all(entries.map((entry) => (entry.isDirectory ? listed(entry) : [entry])));
  return Promise.all(inside.flat().filter((entry) => entry.isFile).map(opened));
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const reference = form.querySelector("input").value.trim();
  if (reference) ask({ hub: root.dataset.hub, reference });
});

function element(name, attributes = {}, ...inside) {
  const made = Object.assign(document.createElement(name), attributes);
  made.append(...inside);
  return made;
}

function table(rows, className) {
  const cells = (row) => row.map((text) => element("td", {}, text));
  return element("table", { className }, element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells(row)))));
}

function section(title, ...inside) {
  return element("section", {}, element("h3", {}, title), ...inside);
}

function folded(title, ...inside) {
  return element("details", {}, element("summary", {}, title), ...inside);
}

function list(texts) {
  return element("ul", {}, ...texts.map((text) => element("li", {}, text)));
}

function showHeader(told) {
  state.textContent = "";
  const parts = told.format ? known(told) : [];
  const asks = Object.keys(told.missing ?? {}).length;
  if (told.problem && !(asks && told.problem.code === "missing-fact")) parts.splice(1, 0, problem(told.problem));
  if (told.command) parts.push(command(told.problem && !asks ? "The same on your machine" : "Command", told.command));
  shown.replaceChildren(...parts);
}

function known(told) {
  const count = (number, word) => `${number.toLocaleString("en")} ${word}`;
  const size = `${count(told.count, "tensors")}, ${count(told.parameters, "parameters")}, ${(told.bytes / 1e6).toFixed(1)} MB`;
  const rows = [["file", told.source], ["format", told.format], ["tensors", size]];
  if (told.tower) rows.push(["tower", told.tower]);
  rows.push(["dialect", told.dialect ? `${told.dialect}: ${told.title}` : "not recognised"]);
  if (told.written_by.length) rows.push(["written by", told.written_by.join("; ")]);
  if (told.opened_by.length) rows.push(["opened by", told.opened_by.join(", ")]);
  const parts = [table(rows, "facts")];
  if (Object.keys(told.missing).length) parts.push(questions(told.missing));
  const config = Object.entries(told.config).map(([name, [value, origin]]) => [name, value, origin]);
  if (config.length) parts.push(section("Configuration", table(config, "config")));
  if (told.notes.length) parts.push(section("Notes", list(told.notes)));
  const ignored = Object.entries(told.ignored).map(([name, why]) => `${name}: ${why}`);
  if (ignored.length) parts.push(folded(`${count(ignored.length, "tensors")} that play no part`, list(ignored)));
  parts.push(folded("All tensors", element("pre", {}, element("code", {}, told.tree.join("\n")))));
  return parts;
}

function questions(missing) {
  const fields = Object.entries(missing).map(([name, why]) => {
    const input = element("input", { className: "md-input", name, value: asked.answers[name] ?? "", required: true });
    return element("label", {}, element("b", {}, name), input, element("small", {}, why));
  });
  const button = element("button", { className: "md-button" }, "Answer");
  const answered = element("form", { className: "questions" }, ...fields, button);
  answered.addEventListener("submit", (event) => {
    event.preventDefault();
    ask({ ...asked, answers: { ...asked.answers, ...Object.fromEntries(new FormData(answered)) } });
  });
  return section("What only you can tell", answered);
}

function problem({ code, text, note }) {
  const inside = [element("pre", {}, element("code", {}, text))];
  if (note) inside.push(element("p", {}, note));
  if (code) inside.push(element("a", { href: new URL(`../errors/${code}/`, import.meta.url).href }, `What ${code} means, and what works`));
  return element("div", { className: "problem" }, ...inside);
}

function command(title, line) {
  const copy = element("button", { className: "md-button", type: "button" }, "Copy");
  copy.addEventListener("click", () => navigator.clipboard.writeText(line));
  return Object.assign(section(title, element("pre", {}, element("code", {}, line)), copy), { className: "command" });
}

function showTargets(told) {
  shown.querySelector(".command")?.remove();
  const inside = told.problem ? [problem(told.problem)] : [targets(told), command("Command", told.command)];
  shown.querySelector(".facts").after(...inside);
}

function targets({ targets: names, hint }) {
  const chips = names.map((name) => element("code", {}, name));
  const inside = [element("p", { className: "targets" }, ...chips)];
  if (hint) inside.push(element("p", {}, hint));
  return section("Targets that hold it as it is", ...inside);
}
