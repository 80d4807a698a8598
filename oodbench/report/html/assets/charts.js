// Scales, axes and marks of the charts.
function scale(low, high, from, to, log) {
  const f = log ? Math.log10 : (v) => v;
  const a = f(low), b = f(high) === a ? a + 1 : f(high);
  const map = (v) => from + ((f(v) - a) / (b - a)) * (to - from);
  return Object.assign(map, { low, high, log });
}

function ticks(low, high, count, log) {
  if (log) {
    const a = Math.ceil(Math.log10(low) - 1e-9), b = Math.floor(Math.log10(high) + 1e-9);
    const every = Math.max(1, Math.ceil((b - a + 1) / count));
    const found = [];
    for (let e = a; e <= b; e += every) found.push(10 ** e);
    return found.length > 1 ? found : [low, high];
  }
  const raw = (high - low || 1) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function extent(values, pad = 0.05) {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (!missing(v)) { if (v < low) low = v; if (v > high) high = v; }
  if (low > high) return [0, 1];
  const more = (high - low || Math.abs(high) || 1) * pad;
  return [low - more, high + more];
}

// What an axis shows at least: 10 points of a proportion, else this share of the largest value.
const LEAST_SPAN = 0.1;

// Values over several orders of magnitude go on a logarithmic axis.
function span(values, percent) {
  const found = values.filter((v) => !missing(v));
  const low = Math.min(...[found.reduce((a, b) => Math.min(a, b), Infinity)]);
  const high = found.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!percent && low > 0 && high / low > 50) return { low: low / 1.2, high: high * 1.2, log: true };
  let [a, b] = extent(found);
  const more = (LEAST_SPAN * (percent ? 1 : Math.max(Math.abs(a), Math.abs(b))) - (b - a)) / 2;
  if (more > 0) [a, b] = [a - more, b + more];
  return { low: percent ? Math.max(a, -0.02) : a, high: percent ? Math.min(b, 1.02) : b, log: false };
}

function short(value) {
  const size = Math.abs(value);
  if (size && (size >= 1e4 || size < 1e-3)) return value.toExponential(0).replace("e+", "e");
  return String(Number(value.toPrecision(3)));
}

function axes(x, y, box, labels) {
  const { left, right, top, bottom } = box, parts = [];
  const every = Math.max(2, Math.floor((right - left) / 70)), rows = Math.max(2, Math.floor((bottom - top) / 30));
  for (const t of ticks(y.low, y.high, rows, y.log)) {
    parts.push(svg("path", { class: "grid", d: `M${left} ${y(t)}H${right}` }));
    parts.push(svg("text", { class: "tick", x: left - 6, y: y(t) + 4, "text-anchor": "end" }, labels.y(t)));
  }
  const marks = labels.marks || ticks(x.low, x.high, every, x.log).map((t) => [t, labels.x(t)]);
  for (const [t, text] of marks) {
    parts.push(svg("path", { class: "axis", d: `M${x(t)} ${bottom}v4` }));
    parts.push(svg("text", { class: "tick", x: x(t), y: bottom + 16, "text-anchor": "middle" }, text));
  }
  parts.push(svg("path", { class: "axis", d: `M${left} ${bottom}H${right}` }));
  if (labels.below) parts.push(svg("text", { class: "tick", x: (left + right) / 2, y: bottom + 34, "text-anchor": "middle" }, labels.below));
  if (labels.above) parts.push(svg("text", { class: "tick", x: left - 40, y: top - 8 }, labels.above));
  return parts;
}

const SHAPES = [
  (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  (x, y, r) => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
  (x, y, r) => `M${x} ${y - 1.3 * r}l${1.2 * r} ${2.1 * r}h${-2.4 * r}z`,
  (x, y, r) => `M${x} ${y - 1.4 * r}l${1.4 * r} ${1.4 * r}l${-1.4 * r} ${1.4 * r}l${-1.4 * r} ${-1.4 * r}z`,
  (x, y, r) => `M${x} ${y + 1.3 * r}l${1.2 * r} ${-2.1 * r}h${-2.4 * r}z`,
];
const round = (v) => Math.round(v * 10) / 10;
const mark = (label, x, y, r) => SHAPES[label % SHAPES.length](round(x), round(y), r);

// Many marks as one path; `near` finds the point under the pointer.
function hotspots(width, height, points, tell, open) {
  const near = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const mx = ((event.clientX - box.left) * width) / box.width, my = ((event.clientY - box.top) * height) / box.height;
    let best = null, least = 18 ** 2;
    for (const p of points) {
      const d = (p.x - mx) ** 2 + (p.y - my) ** 2;
      if (d < least) { least = d; best = p; }
    }
    return best;
  };
  return svg("rect", {
    class: "hot", x: 0, y: 0, width, height,
    onpointermove: (e) => { const p = near(e); p ? showTip(e, tell(p)) : hideTip(); },
    onpointerleave: hideTip,
    onclick: (e) => { const p = near(e); if (p) { hideTip(); open(p); } },
  });
}

function showTip(event, text) {
  const tip = byId("tip");
  tip.textContent = text;
  tip.hidden = false;
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
}
function hideTip() { byId("tip").hidden = true; }

function chart(width, height, label, ...parts) {
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...parts);
  const button = el("button", { type: "button", class: "save", title: "Save this chart as a file for a paper", onclick: () => save(picture, label) }, "SVG");
  return el("div", { class: "chart" }, picture, button);
}

// What the style sheet says of a chart; a file has no style sheet.
const STYLED = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "stroke-linejoin", "stroke-linecap", "opacity", "font-family", "font-size", "font-weight", "text-anchor"];

function save(picture, name) {
  const copy = picture.cloneNode(true), from = [picture, ...picture.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  to.filter((node) => node.classList.contains("hot")).forEach((node) => node.remove());
  to.forEach((node, i) => {
    const style = getComputedStyle(from[i]);
    for (const property of STYLED) node.setAttribute(property, style.getPropertyValue(property));
    for (const own of ["class", "tabindex", "role", "style"]) node.removeAttribute(own);
  });
  copy.setAttribute("xmlns", SVG);
  const url = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
  el("a", { href: url, download: `${name.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60)}.svg` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function key(className, label, text) {
  const icon = svg("svg", { width: 12, height: 12, "aria-hidden": "true" }, svg("path", { class: `fill ${className}`, d: mark(label, 6, 6, 4.2) }));
  return el("span", { class: "key" }, icon, text);
}
const color = (i) => `c${i % 8}`;

function polyline(points) {
  let path = "", pen = "M";
  for (const [x, y] of points) {
    if (Number.isFinite(y)) { path += `${pen}${round(x)} ${round(y)}`; pen = "L"; } else pen = "M";
  }
  return path;
}
