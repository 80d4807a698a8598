// Building elements: texts are always set as text, never as markup.
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(3)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const missing = (v) => v === null || v === undefined || Number.isNaN(v);

function number(value, percent, digits = 4) {
  if (missing(value)) return "–";
  if (percent) return (100 * value).toFixed(1);
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(digits - 2) : String(Number(value.toPrecision(digits)));
}
const signed = (value, percent) => (missing(value) ? "–" : (value > 0 ? "+" : value < 0 ? "−" : "") + number(Math.abs(value), percent, 3));
const unit = (dataset) => dataset.metric + (dataset.percent ? " (%)" : "") + (dataset.higher ? ", higher is better" : ", lower is better");

// A long name may be broken after a bracket, a comma or an underscore, nowhere else.
const breakable = (text) => (typeof text === "string" ? text.split(/(?<=[,_=])|(?<=\()(?!%)/).flatMap((part, i) => (i ? [el("wbr"), part] : [part])) : text);

function table(caption, head, rows, options = {}) {
  const header = head.map((h) => {
    const cell = h instanceof Object ? h : { text: h };
    const content = cell.sort ? el("button", { type: "button", "data-sort": cell.sort, onclick: cell.onclick }, breakable(cell.text)) : breakable(cell.text);
    return el("th", { scope: "col", class: cell.class, "aria-sort": cell.sorted, title: cell.title }, content);
  });
  const body = rows.map((row) => {
    const attributes = row.attributes || {};
    const cells = (row.cells || row).map((c, i) => {
      const cell = c instanceof Object && !(c instanceof Node) && !Array.isArray(c) ? c : { content: c };
      return el(i === 0 ? "th" : "td", { scope: i === 0 ? "row" : null, class: cell.class, title: cell.title }, cell.content);
    });
    return el("tr", attributes, cells);
  });
  const made = el("table", { class: options.class }, el("thead", {}, el("tr", {}, header)), el("tbody", {}, body));
  const name = options.label || caption;
  made.setAttribute("aria-label", name);
  return [caption ? el("p", { class: "caption" }, caption) : null, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, made)];
}

function later(summary, make) {
  const box = el("details", {}, el("summary", {}, summary));
  box.addEventListener("toggle", () => { if (box.open && box.childElementCount === 1) box.append(...[make()].flat(3).filter(Boolean)); });
  return box;
}
const empty = (text) => el("p", { class: "empty" }, text);

function choice(name, label, options, value, change) {
  const made = options.map(([v, text]) => el("option", { value: v, selected: String(v) === String(value) }, text));
  return el("label", {}, label, " ", el("select", { "data-key": name, onchange: (e) => change(e.target.value) }, made));
}
