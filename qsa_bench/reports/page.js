"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== ""));
  return element;
}

// --- theme: as the system, light, dark ---
const themes = ["system", "light", "dark"];
let theme = 0;
byId("theme").addEventListener("click", () => {
  theme = (theme + 1) % themes.length;
  if (theme === 0) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = themes[theme];
  byId("theme").textContent = `Theme: ${themes[theme]}`;
  byId("theme").setAttribute("aria-label", `Theme: ${theme ? themes[theme] : "as the system"}`);
});

// --- one mutant ---
function diffOf(patch) {
  const box = make("pre", { class: "diff", tabindex: "0", "aria-label": "patch" });
  for (const line of patch.replace(/\n$/, "").split("\n")) {
    const kind = /^\+(?!\+\+ )/.test(line) ? "add" : /^-(?!-- )/.test(line) ? "del" : "";
    box.append(make("span", kind ? { class: kind } : {}, `${line}\n`));
  }
  return box;
}

function bodyOf(mutant) {
  const facts = [mutant.proves];
  if (mutant.killed_by.length) facts.push(`Killed by ${mutant.killed_by.join(", ")}.`);
  if (mutant.margin !== null) facts.push(`Error over bound: ${mutant.margin}.`);
  if (mutant.why) facts.push(mutant.why);
  if (mutant.same.length) facts.push(`Same machine code as ${mutant.same.join(", ")}: run once.`);
  if (mutant.reused) facts.push("Found in an earlier run; nothing that decides it has changed.");
  const body = make("div");
  for (const fact of facts) body.append(make("p", { class: "why" }, fact));
  body.append(diffOf(mutant.patch));
  return body;
}

function detailsOf(mutant) {
  const kind = mutant.expected ? mutant.outcome : "unexpected";
  const head = make("summary", {}, make("span", { class: `tag ${kind}` }, mutant.outcome), " ",
    make("code", {}, mutant.id), ` ${mutant.path}:${mutant.line}`);
  const box = make("details", { "data-id": mutant.id }, head);
  // The patch is laid out when it is looked at: a campaign has thousands.
  box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(bodyOf(mutant)); });
  return box;
}

function fill(section, nodes, none) {
  const list = byId(section).querySelector(".list");
  list.replaceChildren(...(nodes.length ? nodes : [make("p", { class: "empty" }, none)]));
}

// --- the kill matrix ---
function classOf(cell) {
  if (!cell) return ["", " ", "not run"];
  const [cases, failed, margin] = cell;
  const measured = margin === null ? "" : `, error over bound ${margin}`;
  const number = margin === null ? null : Number(margin === "inf" || margin === "nan" ? Infinity : margin);
  if (failed) {
    const heat = number === null ? "k0" : number <= 3 ? "k1" : number <= 1000 ? "k2" : "k3";
    return [heat, "x", `killed: ${failed} of ${cases} cases${measured}`];
  }
  if (number !== null && number >= 0.1) return ["n", "~", `near miss in ${cases} cases${measured}`];
  return ["s", ".", `saw nothing in ${cases} cases${measured}`];
}

function matrixOf(stage, mutants) {
  const checks = data.checks[stage] || [];
  const head = make("tr", {}, make("th", { scope: "col" }, "mutant"),
    ...checks.map((check) => make("th", { scope: "col" }, make("span", {}, check))));
  const body = make("tbody");
  mutants.forEach((mutant, row) => {
    const name = make("th", { scope: "row", title: mutant.id }, mutant.id.slice(stage.length + 1));
    const line = make("tr", {}, name);
    checks.forEach((check, column) => {
      const [kind, sign, said] = classOf(mutant.cells[check]);
      line.append(make("td", { class: kind, tabindex: row || column ? "-1" : "0",
        title: `${check}: ${said}`, "aria-label": `${mutant.id}, ${check}: ${said}`, "data-open": mutant.id }, sign));
    });
    body.append(line);
  });
  const table = make("table", { class: "kill" }, make("caption", {}, `${stage}: mutants by checks`),
    make("thead", {}, head), body);
  table.addEventListener("keydown", move);
  table.addEventListener("click", (event) => open(event.target.dataset.open));
  return make("div", { class: "scroll" }, table);
}

function move(event) {
  const cell = event.target;
  if (cell.tagName !== "TD") return;
  if (event.key === "Enter") {
    // Else the key would go on to what has the focus then, and close it again.
    event.preventDefault();
    open(cell.dataset.open);
    return;
  }
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!steps) return;
  event.preventDefault();
  const rows = [...cell.closest("tbody").rows];
  const row = rows[rows.indexOf(cell.parentElement) + steps[0]];
  const next = row && row.cells[cell.cellIndex + steps[1]];
  if (!next || next.tagName !== "TD") return;
  cell.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function open(id) {
  if (!id) return;
  const box = [...document.querySelectorAll("#mutants details")].find((each) => each.dataset.id === id);
  if (!box) return;
  box.open = true;
  box.querySelector("summary").focus();
  box.scrollIntoView({ block: "center" });
}

// --- the source ---
function sourceOf(path, mutants) {
  const marks = new Map();
  for (const mutant of mutants) marks.set(mutant.line, [...(marks.get(mutant.line) || []), mutant]);
  const lines = make("div", { class: "source" });
  (data.sources[path] || "").replace(/\n$/, "").split("\n").forEach((text, index) => {
    const here = marks.get(index + 1) || [];
    const bad = here.some((mutant) => !mutant.expected);
    const cell = make("span", { class: "marks" });
    const row = make("code", { class: "row" }, make("span", { class: "number" }, String(index + 1)), cell,
      make("span", {}, text || " "));
    if (here.length) {
      const button = make("button", { type: "button", "aria-expanded": "false",
        "aria-label": `${here.length} mutants of line ${index + 1}${bad ? ", one or more not as expected" : ""}` },
        bad ? `${here.length} !` : String(here.length));
      if (bad) button.className = "bad";
      button.addEventListener("click", () => {
        const shown = button.getAttribute("aria-expanded") === "true";
        button.setAttribute("aria-expanded", String(!shown));
        if (shown) row.querySelector(".opened").remove();
        else row.append(make("div", { class: "opened" }, ...here.map(detailsOf)));
      });
      cell.append(button);
    }
    lines.append(row);
  });
  const box = make("details", {}, make("summary", {}, make("code", {}, path), ` ${mutants.length} mutants`));
  box.append(make("div", {}, lines));
  box.open = mutants.some((mutant) => !mutant.expected);
  return box;
}

// --- filters ---
const filters = {
  "by-stage": (mutant, value) => mutant.stage === value,
  "by-outcome": (mutant, value) => (value === "not as expected" ? !mutant.expected : mutant.outcome === value),
  "by-operator": (mutant, value) => (mutant.operator || "by hand") === value,
  "by-check": (mutant, value) => mutant.killed_by.includes(value),
  "by-text": (mutant, value) => mutant.text.includes(value.toLowerCase()),
};
const values = (pick) => [...new Set(data.mutants.flatMap(pick))].sort();
for (const [id, options] of Object.entries({
  "by-stage": values((mutant) => mutant.stage),
  "by-outcome": ["not as expected", ...values((mutant) => mutant.outcome)],
  "by-operator": values((mutant) => mutant.operator || "by hand"),
  "by-check": values((mutant) => mutant.killed_by),
})) {
  byId(id).append(make("option", { value: "" }, "all"), ...options.map((value) => make("option", { value }, value)));
}
for (const mutant of data.mutants) {
  mutant.text = `${mutant.id}\n${mutant.why}\n${mutant.proves}\n${mutant.patch}`.toLowerCase();
}

function show() {
  const chosen = data.mutants.filter((mutant) => Object.entries(filters).every(([id, holds]) => {
    const value = byId(id).value;
    return !value || holds(mutant, value);
  }));
  byId("shown").textContent = `${chosen.length} of ${data.mutants.length} mutants`;
  fill("survivors", chosen.filter((mutant) => !mutant.expected).map(detailsOf), "None.");
  const stages = [...new Set(chosen.map((mutant) => mutant.stage))];
  fill("matrix", stages.map((stage) => matrixOf(stage, chosen.filter((mutant) => mutant.stage === stage))),
    "No mutant is shown.");
  const paths = [...new Set(chosen.map((mutant) => mutant.path))].sort();
  fill("sources", paths.map((path) => sourceOf(path, chosen.filter((mutant) => mutant.path === path))),
    "No mutant is shown.");
  fill("mutants", chosen.map(detailsOf), "No mutant is shown.");
}

byId("facts").textContent = data.facts;
byId("filters").addEventListener("input", show);
byId("filters").addEventListener("reset", () => setTimeout(show));
byId("filters").addEventListener("submit", (event) => event.preventDefault());
show();
