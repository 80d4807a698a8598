// What stands where; the state of the page; and its beginning.
function counts(wanted) {
  const R = data().runs, found = new Map();
  for (let i = 0; i < R.id.length; i++) {
    if (!wanted(i)) continue;
    if (!found.has(R.state[i])) found.set(R.state[i], []);
    found.get(R.state[i]).push(i);
  }
  return [...found].sort((a, b) => a[0] - b[0]);
}

function stateBar(found, className) {
  const parts = found.map(([s, runs]) => { const part = el("span", { class: `part s-${data().states[s]}` }); part.style.flexGrow = runs.length; return part; });
  return el("span", { class: className, "aria-hidden": "true" }, parts);
}
const stateButtons = (found, where) => found.map(([s, runs]) => el("button", { type: "button", class: `key s-${data().states[s]}`, onclick: () => openRuns(`${data().states[s]}${where}`, runs) }, el("span", { class: "swatch" }), `${runs.length} ${data().states[s]}`));

function showHeader() {
  const all = counts(() => true), total = data().runs.id.length;
  byId("title").textContent = data().title;
  byId("lede").textContent = `${plural(total, "run")}: ${plural(data().labels.length - data().grey.length, "algorithm")} on ${plural(data().datasets.length, "dataset")}; ${plural(new Set(data().runs.draw).size, "hparam draw")}, ${plural(new Set(data().runs.trial).size, "trial")}.`;
  byId("health").replaceChildren(...stateBar(all, "").children);
  byId("states").replaceChildren(...stateButtons(all, ""));
  byId("baseline").textContent = data().baseline === null ? "a baseline" : label(data().baseline);
  byId("footer").textContent = `Made by oodbench ${data().version} on ${data().made.replace("T", " ").replace("+00:00", " UTC")}. An environment is what the literature also calls a domain.`;
}

const inView = (d) => state.dataset < 0 || state.dataset === d;
const viewed = () => data().datasets.map((_, d) => d).filter(inView);

function showCoverage() {
  const R = data().runs, keep = shownSet(), names = data().states;
  const present = counts((i) => keep.has(R.label[i]) && inView(R.dataset[i])).map(([s]) => s);
  const several = viewed().length > 1;
  const opener = (runs, what, title) => (runs && runs.length ? el("button", { type: "button", "aria-label": `${what}; list them`, onclick: () => openRuns(title, runs) }, what) : "–");
  const rows = shown().filter((l) => R.label.includes(l)).map((l) => {
    const all = counts((i) => R.label[i] === l && inView(R.dataset[i])), by = new Map(all);
    const perDataset = viewed().map((d) => {
      const found = counts((i) => R.label[i] === l && R.dataset[i] === d), runs = found.flatMap(([, own]) => own);
      const ended = found.filter(([s]) => ["done", "diverged"].includes(names[s])).reduce((n, [, own]) => n + own.length, 0);
      return el("div", { class: "covered" }, stateBar(found, "bar"), opener(runs, `${ended}/${runs.length}`, `${label(l)} on ${data().datasets[d].name}`));
    });
    const planned = all.flatMap(([, own]) => own);
    return [label(l), ...perDataset, ...(several ? [opener(planned, String(planned.length), label(l))] : []), ...present.map((s) => opener(by.get(s), String((by.get(s) || []).length), `${label(l)}: ${names[s]}`))];
  });
  const head = ["algorithm", ...viewed().map((d) => data().datasets[d].name), ...(several ? ["all"] : []), ...present.map((s) => names[s])];
  return [table("Ended of planned runs, and all runs by state; a diverged run counts with the records that it has.", head, rows, { label: "Coverage", class: "board" }), showReasons(keep)];
}

function showReasons(keep) {
  const R = data().runs, reasons = new Map();
  for (const [run, text] of Object.entries(data().reasons)) {
    const id = Number(run);
    if (!keep.has(R.label[id]) || !inView(R.dataset[id])) continue;
    const at = JSON.stringify([data().states[R.state[id]], label(R.label[id]), text]);
    reasons.set(at, [...(reasons.get(at) || []), id]);
  }
  if (!reasons.size) return el("p", { class: "caption" }, "No run failed, diverged or was lost.");
  const list = [...reasons].map(([at, runs]) => {
    const [s, l, text] = JSON.parse(at);
    return [s, { content: l, class: "text" }, { content: text, class: "text wrap" }, el("button", { type: "button", "aria-label": `${plural(runs.length, "run")}; list them`, onclick: () => openRuns(`${s}: ${text}`, runs) }, runs.length)];
  });
  return table("Why runs are missing or ended early:", ["state", { text: "algorithm", class: "text" }, { text: "reason", class: "text" }, "runs"], list, { label: "Reasons" });
}

function showCost() {
  const C = data().cost, at = new Map(C.label.map((l, i) => [`${l} ${C.dataset[i]}`, i]));
  const labels = shown().filter((l) => viewed().some((d) => at.has(`${l} ${d}`) && !missing(C.seconds[at.get(`${l} ${d}`)])));
  if (!labels.length) return [empty("No cost is recorded yet.")];
  const cells = (l) => viewed().map((d) => at.get(`${l} ${d}`)), all = labels.flatMap(cells).filter((i) => i !== undefined);
  const most = Math.max(1, ...all.map((i) => C.ratio[i] || 0)), name = data().baseline === null ? "baseline" : label(data().baseline);
  const sum = (places) => places.reduce((s, i) => s + (i === undefined ? 0 : C.hours[i] || 0), 0);
  const ratio = (i) => {
    if (i === undefined || missing(C.ratio[i])) return "–";
    const meter = el("span", { class: "meter wide", "aria-hidden": "true" });
    meter.style.width = `${Math.round((70 * C.ratio[i]) / most)}px`;
    return el("span", { class: "covered" }, meter, `${C.ratio[i].toFixed(2)} ×`);
  };
  const rows = labels.map((l) => {
    const own = cells(l), memory = own.map((i) => (i === undefined ? null : C.memory[i])).filter((v) => !missing(v));
    const timed = own.filter((i) => i !== undefined && !missing(C.waiting[i]));
    const waited = timed.reduce((s, i) => s + C.waiting[i] * C.hours[i], 0) / sum(timed);
    const pace = own.length === 1 && own[0] !== undefined ? [number(1000 * C.seconds[own[0]], false, 3)] : [];
    return [label(l), ...own.map(ratio), ...pace, timed.length ? `${(100 * waited).toFixed(1)} %` : "not recorded", memory.length ? number(Math.max(...memory), false, 3) : "not recorded", number(sum(own), false, 3)];
  });
  const only = viewed().length === 1;
  const head = ["algorithm", ...viewed().map((d) => (only ? `step / ${name}` : `${data().datasets[d].name}: step / ${name}`)), ...(only ? ["ms a step"] : []), "waiting for data", "memory (MiB)", "hours in all"];
  const caption = `A step: the median over runs, as a ratio to ${name} on the same machines. Waiting for data: its share of training. Memory: the accelerator's, at most. Hours: training of all runs, without evaluation; ${number(sum(all), false, 3)} in all.`;
  return [table(caption, head, rows, { label: "Cost", class: "board" })];
}

function showProvenance() {
  const R = data().runs, made = data().provenance, used = made.map(() => 0), parts = [];
  R.provenance.forEach((p) => { used[p] += 1; });
  const started = made.map((_, p) => p).filter((p) => Object.keys(made[p]).length);
  if (!started.length) return [empty("No run has started yet.")];
  const names = [...new Set(started.flatMap((p) => Object.keys(made[p])))];
  const distinct = (name) => new Set(started.map((p) => JSON.stringify(made[p][name])));
  if (distinct("commit").size > 1) parts.push(el("p", { class: "alert" }, "The runs were made by several versions of the code."));
  if (started.some((p) => String(made[p].commit).endsWith("+"))) parts.push(el("p", { class: "alert" }, "A commit with + had changes that were not committed."));
  const runsOf = (p) => R.provenance.map((q, i) => (q === p ? i : -1)).filter((i) => i >= 0);
  const open = (p) => el("button", { type: "button", "aria-label": `${plural(used[p], "run")}; list them`, onclick: () => openRuns("Runs of this provenance", runsOf(p)) }, used[p]);
  const show = (v) => (v === null || v === undefined ? "–" : typeof v === "string" ? v : JSON.stringify(v));
  const rows = started.map((p) => [...names.map((n) => ({ content: show(made[p][n]), class: "text" })), open(p)]);
  parts.push(table("What made the runs", [...names.map((n) => ({ text: n, class: "text" })), "runs"], rows, { label: "Provenance" }));
  if (data().started.length) parts.push(el("p", {}, `Started from ${data().started.join(" to ")}.`));
  const settings = Object.entries(data().settings);
  if (settings.length) parts.push(el("h3", {}, "The sweep's settings"), el("dl", {}, settings.map(([k, v]) => [el("dt", {}, k), el("dd", {}, show(v))])));
  parts.push(el("h3", {}, "Beside the numbers"), el("ul", {}, (rule().notes || []).map((n) => el("li", {}, n))));
  return parts;
}

const SECTIONS = { leaderboard: showLeaderboard, coverage: showCoverage, differences: showDifferences, ranks: showRanks, scatter: showScatter, curves: showCurves, hparams: showHparams, cost: showCost, provenance: showProvenance };
const FREE = ["coverage", "cost", "provenance"]; // these need nothing that a rule can fail to give

function render(wanted = Object.keys(SECTIONS)) {
  hideTip();
  const focused = document.activeElement && document.activeElement.closest("section");
  const mine = document.activeElement && (document.activeElement.dataset.sort || document.activeElement.dataset.key);
  for (const name of wanted) {
    const body = byId(name).querySelector(".body");
    body.replaceChildren(...(rule().error && !FREE.includes(name) ? [empty(rule().error)] : SECTIONS[name]()).flat(3).filter(Boolean));
    if (focused && focused.id === name && mine) {
      const again = [...body.querySelectorAll("[data-sort], [data-key]")].find((n) => (n.dataset.sort || n.dataset.key) === mine);
      if (again) again.focus();
    }
  }
  byId("rulenote").textContent = `Selection ${state.rule}: ${rule().summary}.`;
}
const say = (text) => { byId("said").textContent = text; };

function saveState() {
  const kept = new URLSearchParams({ rule: state.rule });
  if (state.dataset >= 0) kept.set("dataset", data().datasets[state.dataset].name);
  if (state.filter) kept.set("algorithms", state.filter);
  if (state.sort) { kept.set("sort", state.sort); kept.set("up", state.up ? 1 : 0); }
  history.replaceState(null, "", `#${kept}`);
}
function loadState() {
  const kept = new URLSearchParams(location.hash.slice(1));
  if (kept.get("rule") in data().rules) state.rule = kept.get("rule");
  else if (!data().rules[data().rule].error) state.rule = data().rule;
  else state.rule = Object.keys(data().rules).find((r) => !data().rules[r].error) || Object.keys(data().rules)[0];
  state.dataset = data().datasets.length === 1 ? 0 : data().datasets.findIndex((d) => d.name === kept.get("dataset"));
  state.filter = kept.get("algorithms") || "";
  state.sort = kept.get("sort") || "";
  state.up = kept.get("up") === "1";
}

function fillControls() {
  const rules = Object.entries(data().rules).map(([name, r]) => el("option", { value: name, selected: name === state.rule }, name + (r.error ? " (not in this sweep)" : "")));
  byId("rule").replaceChildren(...rules);
  const all = data().datasets.length > 1 ? [el("option", { value: -1 }, "all datasets")] : [];
  byId("dataset").replaceChildren(...all, ...data().datasets.map((d, i) => el("option", { value: i, selected: i === state.dataset }, d.name)));
  byId("filter").value = state.filter;
}

function show(contents) {
  D.now = contents;
  fillControls();
  showHeader();
  render();
}

function listen() {
  const change = (set) => (event) => { set(event.target.value); saveState(); render(); };
  byId("rule").addEventListener("change", change((v) => { state.rule = v; state.sort = ""; }));
  byId("dataset").addEventListener("change", change((v) => { state.dataset = Number(v); state.sort = ""; }));
  byId("filter").addEventListener("input", change((v) => { state.filter = v; }));
  byId("filter").addEventListener("input", () => say(plural(shown().length, "algorithm") + " shown"));
  byId("theme").addEventListener("change", (e) => { document.documentElement.dataset.theme = e.target.value; });
  byId("controls").addEventListener("submit", (e) => e.preventDefault());
  byId("close").addEventListener("click", () => byId("dialog").close());
  byId("back").addEventListener("click", goBack);
  byId("dialog").addEventListener("click", (e) => { if (e.target === byId("dialog")) byId("dialog").close(); });
  for (const link of document.querySelectorAll("a[href^='#']")) {
    link.addEventListener("click", (e) => { e.preventDefault(); const target = byId(link.hash.slice(1)).querySelector("h2"); target.scrollIntoView(); target.focus({ preventScroll: true }); });
  }
  let width = innerWidth, waiting = 0;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; clearTimeout(waiting); waiting = setTimeout(() => render(), 150); } });
}

D.now = JSON.parse(byId("data").textContent);
loadState();
listen();
show(D.now);
