// What stands where, and how the page begins.
const SECTIONS = { gap: showGap, order: showOrder, gains: showGains, cost: showCost, line: showLine };
const bodyWidth = () => Math.max(280, byId("gap").querySelector(".body").clientWidth);
const say = (text) => { byId("said").textContent = text; };

async function renderLine() {
  const content = await showLine();
  byId("line").querySelector(".body").replaceChildren(...content.flat(3).filter(Boolean));
}

function render(wanted = Object.keys(SECTIONS)) {
  hideTip();
  const focused = document.activeElement && document.activeElement.dataset.key;
  for (const name of wanted) {
    if (name === "line") { if (lineSeen) renderLine(); continue; }
    byId(name).querySelector(".body").replaceChildren(...SECTIONS[name]().flat(3).filter(Boolean));
  }
  const again = focused && document.querySelector(`[data-key="${CSS.escape(focused)}"]`);
  if (again && wanted.length < Object.keys(SECTIONS).length) again.focus();
  byId("rulenote").textContent = `Selection by ${state.rule}: ${D.rules[state.rule].summary}.`;
}

// The clouds of all runs are drawn when they come near the screen.
let lineSeen = false;
function watchLine() {
  new IntersectionObserver((entries, watcher) => {
    if (!entries.some((e) => e.isIntersecting)) return;
    watcher.disconnect();
    lineSeen = true;
    renderLine();
  }, { rootMargin: "600px" }).observe(byId("line"));
}

function showHeader() {
  const kinds = (kind) => D.rows.filter((row) => row.kind === kind).length, transductive = kinds("transductive");
  byId("lede").textContent = `${plural(kinds("method"), "row")}${transductive ? ` and ${transductive} transductive` : ""} on ${plural(D.datasets.length, "dataset")}.`;
  byId("baseline").textContent = D.baseline;
  byId("footer").textContent = `Made by oodbench ${D.version}. The page needs no network; everything down to "In and out of distribution" is computed in it from the runs that a rule chooses.`;
}

function presets() {
  const kinds = [...new Set(D.datasets.flatMap((dataset) => [dataset.half, dataset.kind]))].filter(Boolean), all = D.datasets.map((_, d) => d);
  const keep = (wanted) => { state.off = new Set(all.filter((d) => !wanted(D.datasets[d]))); saveState(); fillControls(); render(); };
  return [["all", () => true], ...kinds.map((kind) => [kind, (dataset) => dataset.half === kind || dataset.kind === kind])].map(([text, wanted]) => el("button", { type: "button", class: "preset", onclick: () => keep(wanted) }, text));
}

function fillControls() {
  byId("rule").replaceChildren(...Object.keys(D.rules).map((name) => el("option", { value: name, selected: name === state.rule }, name)));
  const boxes = D.datasets.map((dataset, d) => el("label", { class: "chip" }, el("input", { type: "checkbox", checked: !state.off.has(d), "data-dataset": dataset.name, onchange: (e) => { state.off[e.target.checked ? "delete" : "add"](d); saveState(); render(); } }), dataset.name));
  byId("datasets").replaceChildren(el("legend", {}, "Datasets"), ...boxes, el("span", { class: "presets" }, presets()));
  byId("filter").value = state.filter;
  byId("cells").value = state.cells;
}

function saveState() {
  const kept = new URLSearchParams({ rule: state.rule });
  if (state.off.size) kept.set("datasets", D.datasets.map((_, d) => d).filter((d) => !state.off.has(d)).map(nameOf).join("|"));
  if (state.filter) kept.set("rows", state.filter);
  if (state.cells !== "share") kept.set("cells", state.cells);
  kept.set("sort", `${state.up ? "" : "-"}${COLUMNS[state.sort] ? state.sort : nameOf(Number(state.sort))}`);
  history.replaceState(null, "", `#${kept}`);
}
function loadState() {
  const kept = new URLSearchParams(location.hash.slice(1)), names = kept.get("datasets")?.split("|"), sort = kept.get("sort") || "-mean", key = sort.replace(/^-/, "");
  state.rule = kept.get("rule") in D.rules ? kept.get("rule") : D.rule;
  state.off = new Set(names ? D.datasets.map((_, d) => d).filter((d) => !names.includes(nameOf(d))) : []);
  state.filter = kept.get("rows") || "";
  state.cells = kept.get("cells") === "value" ? "value" : "share";
  const d = D.datasets.findIndex((dataset) => dataset.name === key);
  state.sort = d >= 0 ? String(d) : COLUMNS[key] ? key : "mean";
  state.up = !sort.startsWith("-");
}

function listen() {
  const change = (set, wanted) => (event) => { set(event.target.value); saveState(); render(wanted); };
  byId("rule").addEventListener("change", change((v) => { state.rule = v; }));
  byId("cells").addEventListener("change", change((v) => { state.cells = v; }, ["gap"]));
  byId("filter").addEventListener("input", change((v) => { state.filter = v; }));
  byId("filter").addEventListener("input", () => say(`${plural(view().methods.length, "row")} shown`));
  byId("theme").addEventListener("change", (e) => { document.documentElement.dataset.theme = e.target.value; });
  byId("controls").addEventListener("submit", (e) => e.preventDefault());
  byId("close").addEventListener("click", () => byId("dialog").close());
  byId("back").addEventListener("click", goBack);
  byId("dialog").addEventListener("click", (e) => { if (e.target === byId("dialog")) byId("dialog").close(); });
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; render(); } });
  addEventListener("hashchange", () => { loadState(); fillControls(); render(); });
}

loadState();
showHeader();
fillControls();
listen();
render();
watchLine();
