// The episode list: filters, and rows that exist only while they are in view.
const ROW = 56;
const filter = { run: "", category: "", outcome: "", flag: "", search: "", sort: "as played" };
let shown = []; // episode numbers that pass the filter, in order
let current = -1; // the episode being read

function side() {
  const search = h("input", { type: "search", placeholder: "Search tasks and texts   /", "aria-label": "Search", id: "search", autocomplete: "off", oninput: (e) => change({ search: e.target.value }) });
  const list = h("div", { class: "list", id: "list", role: "list", "aria-label": "Episodes", onscroll: () => requestAnimationFrame(drawRows) });
  new ResizeObserver(() => drawRows()).observe(list);
  return h("aside", { class: "side" },
    h("div", { class: "filters" },
      search,
      h("div", { class: "row" },
        choice("run", "All runs", INDEX.runs.map((run) => run.label)),
        INDEX.categories.length > 1 ? choice("category", "All categories", INDEX.categories) : null),
      h("div", { class: "chips", id: "outcomes", role: "group", "aria-label": "Outcome" }),
      h("div", { class: "chips", id: "flags", role: "group", "aria-label": "Format drift" }),
      h("div", { class: "row" }, h("select", { "aria-label": "Order", id: "sort", onchange: (e) => change({ sort: e.target.value }) },
        Object.keys(SORTS).filter((name) => name !== "latest step first" || INDEX.episodes.step.some((v) => v !== null)).map((name) => h("option", { value: name }, name)))),
      h("div", { class: "tally" }, h("span", { id: "tally", "aria-live": "polite" }), h("span", { id: "reading" }))),
    list);
}

function choice(key, all, names) {
  return h("select", { "aria-label": all, id: `by-${key}`, onchange: (e) => change({ [key]: e.target.value }) },
    h("option", { value: "" }, all), names.map((name, i) => h("option", { value: i }, name || "(none)")));
}

function change(what) {
  Object.assign(filter, what);
  const started = performance.now();
  const [found, possible] = select(filter);
  shown = found;
  drawChips(possible);
  document.getElementById("list").scrollTop = 0;
  drawRows();
  document.getElementById("tally").textContent = `${shown.length.toLocaleString("en")} of ${plural(INDEX.episodes.run.length, "episode")}`;
  performance.measure("filter", { start: started });
}

function drawChips(possible) {
  const chip = (label, count, key, value, title) => h("button", { class: "chip", title, "aria-pressed": String(filter[key] === value), onclick: () => change({ [key]: filter[key] === value ? "" : value }) }, label, h("b", {}, count.toLocaleString("en")));
  const byOutcome = [0, 0, 0, 0];
  for (const i of possible) if (passesFlag(i, filter)) byOutcome[INDEX.episodes.outcome[i]]++;
  document.getElementById("outcomes").replaceChildren(...OUTCOMES.map((name, i) => [name, i]).filter(([, i]) => byOutcome[i] || filter.outcome === String(i))
    .map(([name, i]) => chip(`${SIGNS[name]} ${name}`, byOutcome[i], "outcome", String(i))));
  const byFlag = INDEX.flags.map(() => 0);
  let any = 0;
  for (const i of possible) {
    if (!passesOutcome(i, filter)) continue;
    const bits = INDEX.episodes.flags[i];
    if (bits) any++;
    byFlag.forEach((_, bit) => (byFlag[bit] += (bits >> bit) & 1));
  }
  const flags = INDEX.flags.map(([name, meaning], bit) => byFlag[bit] || filter.flag === String(bit) ? chip(name.replace("_", " "), byFlag[bit], "flag", String(bit), meaning) : null);
  document.getElementById("flags").replaceChildren(...[any || filter.flag === "any" ? chip("drift", any, "flag", "any", "Any sign of leaving the action format") : null, ...flags].filter(Boolean));
}

function drawRows() {
  const list = document.getElementById("list");
  if (!list) return;
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
  const last = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 4);
  const focused = list.contains(document.activeElement) ? document.activeElement.dataset.episode : null;
  const rows = [h("div", { style: `height:${shown.length * ROW}px` })];
  for (let at = first; at < last; at++) rows.push(row(shown[at], at));
  if (!shown.length) rows.push(h("div", { class: "empty" }, "No episode passes these filters."));
  list.replaceChildren(...rows);
  if (focused) list.querySelector(`[data-episode="${focused}"]`)?.focus({ preventScroll: true });
}

function row(i, at) {
  const of = INDEX.episodes;
  const outcome = OUTCOMES[of.outcome[i]];
  const bits = INDEX.flags.filter((_, bit) => (of.flags[i] >> bit) & 1).length;
  return h("button", { class: "item", role: "listitem", style: `top:${at * ROW}px`, "data-episode": i, "aria-current": i === current ? "true" : null, onclick: () => open(i) },
    h("span", { class: `sign is-${outcome}`, title: outcome }, SIGNS[outcome]),
    h("span", { class: "task" }, of.task[i]),
    h("span", { class: "score", title: "score" }, outcome === "error" ? "–" : number(of.score[i], 2)),
    h("span", { class: "meta" }, `${runStep(INDEX.runs[of.run[i]].label, of.step[i])} · #${of.sample[i]} · ${plural(of.turns[i], "turn")}`),
    bits ? h("span", { class: "flags", title: "Signs of format drift" }, "⚑") : null);
}

function move(by) {
  const at = shown.indexOf(current);
  const next = shown[Math.min(shown.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
  if (next === undefined) return;
  open(next);
  const list = document.getElementById("list");
  const top = shown.indexOf(next) * ROW;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
}
