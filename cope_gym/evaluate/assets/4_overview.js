// The first tab: what came out, how sure it is, how it was learnt.
const openRuns = new Set();

function overview() {
  const page = h("div", { class: "page" });
  page.append(h("div", { class: "headline" }, INDEX.headline), h("div", { class: "subline" }, INDEX.subtitle));
  page.append(h("div", { class: "tiles" }, INDEX.tiles.map(tile)));
  if (INDEX.runs.some((run) => run.metrics)) page.append(evaluationTable());
  if (INDEX.comparisons.length) page.append(comparisonTable());
  if (INDEX.curves.length) page.append(learning());
  if (INDEX.skills.length) page.append(skillTable());
  if (INDEX.errors.length) page.append(errorTable());
  if (Object.keys(INDEX.facts).length) page.append(factList());
  return h("div", { class: "overview", tabindex: "-1" }, page);
}

function tile(of) {
  return h("div", { class: "tile" },
    h("div", { class: "label" }, of.label),
    h("div", { class: "value" }, of.value),
    of.change ? h("div", { class: "note" }, h("span", { class: of.direction }, of.change), ` ${of.since}`) : null,
    h("div", { class: "note" }, of.note));
}

function section(title, hint, ...content) {
  return h("section", { class: "block" }, h("h2", {}, title), hint ? h("p", { class: "hint" }, hint) : null, ...content);
}

function withInterval(estimate, show, colour, low, high) {
  if (!estimate) return "–";
  const interval = estimate.low === null ? "" : estimate.low === estimate.high ? "no spread" : `${show(estimate.low).replace(" %", "")} to ${show(estimate.high)}`;
  return [colour ? intervalBar(estimate, colour, low, high) : null, h("span", { class: "est" }, show(estimate.value), h("span", { class: "interval" }, interval))];
}

function evaluationTable() {
  const runs = INDEX.runs.map((run, i) => [run, i]).filter(([run]) => run.metrics);
  const k = Math.max(...runs.flatMap(([run]) => Object.keys(run.metrics).map((name) => Number(/^pass@(\d+)$/.exec(name)?.[1] ?? 0))));
  const ks = k ? [`pass@${k}`, `pass^${k}`] : []; // the others are in result.json
  const body = h("tbody", {});
  const draw = () => {
    body.replaceChildren();
    for (const [run, i] of runs) {
      body.append(runRow(run, i, ks, draw));
      if (openRuns.has(i)) for (const [name, row] of Object.entries(run.categories)) body.append(categoryRow(name, row, i, ks.length));
    }
  };
  draw();
  const head = ["Run", "Success", "Score", ...ks, "Turns", "Invalid", "Episodes"];
  const table = h("table", {}, h("thead", {}, h("tr", {}, head.map((text, i) => h("th", { class: i > 2 ? "r" : null, title: MEANING[text.replace(/\d+/, "k")] }, text)))), body);
  return section("Evaluation", "Success and score are means over tasks; the bar is the 95 % interval, resampled by task, so episodes of one task count as one. Open a row for its categories.",
    h("div", { class: "card scroll" }, table));
}

const MEANING = {
  Success: "The benchmark calls the episode solved", Score: "The benchmark's score, 0 to 1",
  "pass@k": "At least one of k episodes succeeds", "pass^k": "All of k episodes succeed",
  Turns: "Mean turns an episode", Invalid: "Share of turns that the benchmark could not execute",
  Episodes: "Episodes that count; errors and tasks without a solution are listed apart",
};

function runRow(run, i, ks, redraw) {
  const m = run.metrics;
  const toggle = () => {
    openRuns.has(i) ? openRuns.delete(i) : openRuns.add(i);
    redraw();
  };
  const errors = run.errors ? h("span", { class: "badge error", title: "Infrastructure errors: not scored, listed below" }, plural(run.errors, "error")) : null;
  const partial = run.complete ? null : h("span", { class: "badge warn", title: "Short tasks finish first: a partial result is biased" }, `partial: ${run.played} of ${run.planned}`);
  return h("tr", { class: "head" },
    h("td", {}, h("button", { class: "fold", onclick: toggle, "aria-expanded": String(openRuns.has(i)), title: "Categories" }, openRuns.has(i) ? "▾" : "▸"),
      h("span", { class: "swatch", style: `background:${colour(i)}` }), run.label, " ", partial),
    h("td", {}, withInterval(m.success, percent, colour(i))),
    h("td", {}, withInterval(m.score, number, colour(i))),
    ks.map((k) => h("td", { class: "r" }, withInterval(m[k], percent))),
    h("td", { class: "r" }, number(m.turns?.value)),
    h("td", { class: "r" }, percent(m.invalid_share?.value)),
    h("td", { class: "r" }, run.played.toLocaleString("en"), " ", errors));
}

function categoryRow(name, row, i, extra) {
  return h("tr", { class: "sub" },
    h("td", {}, name || "(none)"),
    h("td", {}, withInterval(row.success, percent, colour(i))),
    h("td", {}, withInterval(row.score, number, colour(i))),
    Array.from({ length: extra }, () => h("td", {})),
    h("td", { class: "r" }, number(row.turns?.value)),
    h("td", { class: "r" }, percent(row.invalid_share?.value)),
    h("td", { class: "r" }, row.episodes.toLocaleString("en")));
}

function comparisonTable() {
  const points = (v) => `${signed(100 * v, 1)}`;
  const widest = Math.max(0.05, ...INDEX.comparisons.flatMap((c) => [Math.abs(c.difference.low ?? 0), Math.abs(c.difference.high ?? 0), Math.abs(c.difference.value)]));
  const rows = INDEX.comparisons.map((c) => h("tr", {},
    h("td", {}, `${INDEX.runs[c.b].label} − ${INDEX.runs[c.a].label}`),
    h("td", {}, c.measure),
    h("td", {}, intervalBar(c.difference, c.difference.value < 0 ? "var(--failed)" : "var(--solved)", -widest, widest, 170),
      h("span", { class: "est" }, points(c.difference.value), " points", h("span", { class: "interval" }, c.difference.low === null ? "" : c.difference.low === c.difference.high ? "no spread" : `${points(c.difference.low)} to ${points(c.difference.high)}`))),
    h("td", { class: "r" }, c.p_value < 0.001 ? "< 0.001" : number(c.p_value, 2)),
    h("td", { class: "r" }, `${c.better} / ${c.equal} / ${c.worse}`)));
  const head = ["Comparison", "Measure", "Difference", "p", "better / equal / worse"];
  return section("Paired by task", "Both runs on the same tasks, so what differs between tasks cancels. p: sign-flip permutation test over tasks.",
    h("div", { class: "card scroll" }, h("table", {}, h("thead", {}, h("tr", {}, head.map((text, i) => h("th", { class: i > 2 ? "r" : null }, text)))), h("tbody", {}, rows))));
}

function learning() {
  const names = [...new Set(INDEX.curves.flatMap((chart) => chart.lines.map((line) => line.run)))];
  const tint = new Map(names.map((name, i) => [name, colour(i)]));
  const block = section("Learning curves", "One point a training step; with many steps the bold line is smoothed, and with several seeds the shade is their range. Point at a curve to read it.");
  if (names.length > 1) block.append(h("div", { class: "legend" }, names.map((name) => h("span", {}, h("span", { class: "swatch", style: `background:${tint.get(name)}` }), name))));
  for (const group of new Set(INDEX.curves.map((chart) => chart.group))) {
    const charts = INDEX.curves.filter((chart) => chart.group === group);
    block.append(h("h3", {}, group), h("div", { class: "curves" },
      charts.map((chart) => curve(chart.name, chart.also, chart.lines.map((line) => ({ colour: tint.get(line.run), points: line.points, band: line.band }))))));
  }
  return block;
}

function skillTable() {
  const lifts = INDEX.skills.map((skill) => skill.lift).filter(Boolean);
  const widest = Math.max(0.05, ...lifts.flatMap((lift) => [lift.low, lift.high, lift.value].map((v) => Math.abs(v ?? 0))));
  const show = (v) => signed(v);
  const rows = INDEX.skills.map((skill) => h("tr", {},
    h("td", {}, h("details", { class: "more-facts" }, h("summary", { title: skill.id }, skill.name), h("pre", {}, skill.card))),
    h("td", { class: "mono", title: skill.provenance }, skill.source),
    h("td", { class: "r" }, number(skill.uses)),
    h("td", { class: "r" }, percent(skill.outcome)),
    h("td", {}, withInterval(skill.lift, show, skill.lift?.value < 0 ? "var(--failed)" : "var(--solved)", -widest, widest)),
    h("td", { style: "white-space:normal" }, skill.retired ? h("span", { class: "badge warn" }, `retired: ${skill.retired}`) : "")));
  const head = ["Skill", "Source task", "Uses", "Success with it", "Lift", ""];
  return section("Skill bank", "Lift is success with the skill minus success without one on the same tasks, with its 95 % interval over tasks. Open a skill to read it; its origin shows over the source task.",
    h("div", { class: "card scroll" }, h("table", {}, h("thead", {}, h("tr", {}, head.map((text, i) => h("th", { class: i === 2 || i === 3 ? "r" : null }, text)))), h("tbody", {}, rows))));
}

function errorTable() {
  const rows = INDEX.errors.map((e) => h("tr", {}, h("td", {}, INDEX.runs[e.run].label), h("td", { class: "mono" }, `${e.task_id} #${e.sample}`), h("td", {}, e.type), h("td", { style: "white-space:normal" }, e.detail)));
  return section("Infrastructure errors", "Not the agent's: these episodes were tried again, failed again, and are in no number above.",
    h("div", { class: "card scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["Run", "Episode", "Error", "Detail"].map((t) => h("th", {}, t)))), h("tbody", {}, rows))));
}

function factList() {
  const rows = Object.entries(INDEX.facts).map(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]);
  return section("How it was made", "", h("div", { class: "card" }, h("dl", { class: "facts" }, rows)));
}
