// One episode, or two of the same task side by side.
let beside = -1; // the episode on the right, -1 for none
let layer = "messages"; // what the tokens are coloured by
let here = 0; // the turn that n and p move from
let drawing = 0; // a later drawing makes an earlier one void

async function open(i) {
  current = i;
  here = 0;
  if (beside >= 0 && INDEX.episodes.task[beside] !== INDEX.episodes.task[i]) beside = partner(i);
  history.replaceState(null, "", `#episode=${i}${beside >= 0 ? `&beside=${beside}` : ""}`);
  drawRows();
  await drawEpisode();
}

// The same task and sample in another run, else any other episode of the task.
function partner(i) {
  const of = INDEX.episodes;
  const others = rivals(i);
  const other = others.filter((j) => of.run[j] !== of.run[i]);
  return other.find((j) => of.sample[j] === of.sample[i]) ?? other[0] ?? others[0] ?? -1;
}

function rivals(i) {
  const of = INDEX.episodes;
  return of.task.map((task, j) => (task === of.task[i] && j !== i ? j : -1)).filter((j) => j >= 0);
}

async function drawEpisode() {
  const pane = document.getElementById("pane");
  if (!pane) return;
  if (current < 0) return pane.replaceChildren(h("div", { class: "empty" }, "No episode to read."));
  const ticket = ++drawing;
  const pair = await Promise.all([episode(current), beside >= 0 ? episode(beside) : null]);
  if (ticket !== drawing) return;
  const layers = ["messages", ...new Set(pair.filter(Boolean).flatMap((e) => Object.keys(e.tokens || {}).filter((key) => LAYERS[key])))];
  if (!layers.includes(layer)) layer = "messages";
  const talk = layer !== "messages" ? tokenView(pair) : beside >= 0 ? sideBySide(pair) : h("div", { class: "talk" }, notes(pair[0]), cells(pair[0], current), afterwards(pair[0]));
  pane.replaceChildren(bar(pair[0], layers), talk);
  pane.scrollTop = 0;
}

function bar(e, layers) {
  const of = INDEX.episodes;
  const outcome = OUTCOMES[of.outcome[current]];
  const others = rivals(current);
  const name = (j) => `${SIGNS[OUTCOMES[of.outcome[j]]]} ${runStep(INDEX.runs[of.run[j]].label, of.step[j])} #${of.sample[j]}`;
  const compare = others.length ? h("select", { "aria-label": "Compare with", id: "beside", onchange: (event) => ((beside = Number(event.target.value)), open(current)) },
    h("option", { value: -1 }, "Side by side with …"), others.slice(0, 300).map((j) => h("option", { value: j, selected: j === beside }, name(j)))) : null;
  const overlay = layers.length > 1 ? h("select", { "aria-label": "Token overlay", id: "layer", onchange: (event) => ((layer = event.target.value), drawEpisode()) },
    layers.map((key) => h("option", { value: key, selected: key === layer }, key === "messages" ? "Messages" : `Tokens: ${LAYERS[key].name}`))) : null;
  const about = [runStep(INDEX.runs[of.run[current]].label, of.step[current]), e.policy && e.policy !== INDEX.runs[of.run[current]].label ? e.policy : null, `sample ${e.sample}`, e.seed === null ? null : `seed ${e.seed}`,
    plural(e.turns.length, "turn"), e.turns.some((t) => t.tokens) ? plural(e.turns.reduce((sum, t) => sum + t.tokens, 0), "token") : null];
  return h("div", { class: "bar" },
    h("div", { class: "line" }, h("span", { class: `badge ${outcome}` }, `${SIGNS[outcome]} ${outcome}`), h("h2", {}, e.task_id),
      outcome === "error" ? null : h("span", { class: "num soft" }, `score ${number(e.score)} · reward ${number(e.reward)}`),
      h("span", { class: "tools" }, compare, overlay)),
    h("div", { class: "about" }, about.filter(Boolean).join(" · ")),
    h("div", { class: "strip", role: "group", "aria-label": "Reward by turn" }, strip(e)));
}

// Reward breakdown: one bar a turn; its height is the score after the turn, its colour the reward.
function strip(e) {
  return e.turns.map((t, k) => h("button", { class: t.reward > 0 ? "gain" : t.reward < 0 ? "loss" : t.valid ? "" : "bad", onclick: () => jump(k), title: `turn ${t.index + 1}: ${t.action || "no action"}\nreward ${signed(t.reward)}, score ${number(t.score)}${t.valid ? "" : ", not executed"}` },
    h("i", { style: `height:${Math.round(100 * Math.max(0.25, t.score))}%` })));
}

function jump(k) {
  here = k;
  const pane = document.getElementById("pane");
  pane.querySelectorAll(".here").forEach((node) => node.classList.remove("here"));
  const target = pane.querySelector(`[data-turn="${k}"]`);
  if (!target) return;
  target.classList.add("here");
  target.scrollIntoView({ block: "start" });
}

function notes(e) {
  return [
    e.error ? h("div", { class: "note-line error" }, `${e.error.type}: ${e.error.detail}`) : null,
    e.withheld ? h("div", { class: "note-line" }, e.withheld) : null,
  ];
}

// Messages grouped by turn: what stands before the first turn, then one cell a turn.
function cells(e, i) {
  const groups = [[]];
  const turnOf = new Map(e.turns.map((t, k) => [t.message, k]));
  e.messages.forEach((message, at) => {
    if (turnOf.has(at)) groups.push([]);
    groups.at(-1).push(bubble(e, message, turnOf.get(at)));
  });
  return groups.map((group, g) => h("div", { class: "cell", "data-turn": g ? g - 1 : null, "data-of": i }, group));
}

const WHO = { system: "System", user: "Environment", assistant: "Agent" };

function bubble(e, [role, text], k) {
  const turn = k === undefined ? null : e.turns[k];
  const tags = turn ? [
    h("span", {}, `turn ${turn.index + 1}`),
    turn.reward ? h("span", { class: `tag ${turn.reward > 0 ? "gain" : "loss"}` }, signed(turn.reward)) : null,
    turn.score ? h("span", { class: "tag" }, `score ${number(turn.score, 2)}`) : null,
    turn.valid ? null : h("span", { class: "tag flag" }, "not executed"),
    e.flags[k].map((name) => h("span", { class: "tag flag", title: (INDEX.flags.find((f) => f[0] === name) || [])[1] }, name.replace("_", " "))),
    turn.tokens ? h("span", {}, plural(turn.tokens, "token")) : null] : null;
  const body = h("div", { class: "body" }, marked(text, ranges(text, turn)));
  const box = h("article", { class: `msg ${role}` }, h("div", { class: "who" }, h("strong", {}, WHO[role] || role), tags), body);
  if (text.length > 1500 || text.split("\n").length > 18) {
    body.classList.add("clipped");
    box.append(h("button", { class: "more", onclick: (event) => (body.classList.remove("clipped"), event.target.remove()) }, `Show all ${text.length.toLocaleString("en")} characters`));
  }
  return box;
}

function ranges(text, turn) {
  if (turn && turn.span) return [[turn.span[0], turn.span[1], "act"]];
  const needle = filter.search.trim().toLowerCase();
  if (!needle) return [];
  const lower = text.toLowerCase();
  const found = [];
  for (let at = lower.indexOf(needle); at >= 0 && found.length < 100; at = lower.indexOf(needle, at + needle.length)) found.push([at, at + needle.length, "hit"]);
  return found;
}

function afterwards(e) {
  const parts = { "Reward breakdown": e.extra.reward_parts, Options: e.options, Extra: { ...e.extra, reward_parts: undefined } };
  return Object.entries(parts).filter(([, value]) => value && Object.values(value).some((v) => v !== undefined))
    .map(([name, value]) => h("details", { class: "more-facts", open: name === "Reward breakdown" }, h("summary", {}, name), h("pre", {}, JSON.stringify(value, null, 1))));
}

function sideBySide([left, right]) {
  const columns = [cells(left, current), cells(right, beside)];
  const title = (i) => h("div", { class: "colhead" }, h("span", { class: `sign is-${OUTCOMES[INDEX.episodes.outcome[i]]}` }, SIGNS[OUTCOMES[INDEX.episodes.outcome[i]]]), " ",
    `${INDEX.runs[INDEX.episodes.run[i]].label} #${INDEX.episodes.sample[i]}`, h("span", { class: "soft num" }, ` · score ${number(INDEX.episodes.score[i])}`));
  const talk = h("div", { class: "talk two" }, title(current), title(beside));
  for (let k = 0; k < Math.max(columns[0].length, columns[1].length); k++) talk.append(columns[0][k] || h("div", {}), columns[1][k] || h("div", {}));
  talk.append(h("div", { class: "cell" }, notes(left)), h("div", { class: "cell" }, notes(right)));
  return talk;
}
