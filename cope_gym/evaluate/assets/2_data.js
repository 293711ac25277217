// The embedded data: one small index, read at once, and blocks of episodes, read when they are needed.
const OUTCOMES = ["solved", "truncated", "failed", "error"];
const SIGNS = { solved: "✓", truncated: "◐", failed: "✕", error: "!" };
const blocks = new Map(); // block number → promise of its episodes

async function unpack(id) {
  const packed = atob(document.getElementById(id).textContent);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

function block(number) {
  if (!blocks.has(number)) {
    if (blocks.size > 12) blocks.delete(blocks.keys().next().value);
    blocks.set(number, unpack(`block-${number}`));
  }
  return blocks.get(number);
}

async function episode(i) {
  const of = INDEX.episodes;
  return (await block(of.block[i]))[of.offset[i]];
}

// Whole texts for the search, built while the page is idle. An entry is undefined until its block was read.
const TEXTS = [];
async function readTexts(onProgress) {
  const of = INDEX.episodes;
  const byBlock = new Map();
  of.block.forEach((b, i) => (byBlock.has(b) ? byBlock.get(b).push(i) : byBlock.set(b, [i])));
  let done = 0;
  for (const [b, members] of byBlock) {
    const episodes = blocks.has(b) ? await blocks.get(b) : await unpack(`block-${b}`);
    for (const i of members) TEXTS[i] = episodes[of.offset[i]].messages.map((m) => m[1]).join("\n").toLowerCase();
    onProgress(++done / byBlock.size);
    await new Promise((resume) => setTimeout(resume, 0));
  }
}

// Which episodes a filter leaves, in the order of `sort`. Pure: the index in, numbers out.
const SORTS = {
  "as played": null,
  "solved first": (a, b) => INDEX.episodes.outcome[a] - INDEX.episodes.outcome[b] || a - b,
  "failed first": (a, b) => INDEX.episodes.outcome[b] - INDEX.episodes.outcome[a] || a - b,
  "score, low to high": (a, b) => INDEX.episodes.score[a] - INDEX.episodes.score[b] || a - b,
  "longest first": (a, b) => INDEX.episodes.turns[b] - INDEX.episodes.turns[a] || a - b,
  "latest step first": (a, b) => (INDEX.episodes.step[b] ?? -1) - (INDEX.episodes.step[a] ?? -1) || a - b,
};

const passesOutcome = (i, filter) => filter.outcome === "" || INDEX.episodes.outcome[i] === Number(filter.outcome);
const passesFlag = (i, filter) => filter.flag === "" || (INDEX.episodes.flags[i] & (filter.flag === "any" ? -1 : 1 << Number(filter.flag))) !== 0;

// All but outcome and flag, whose chips count what each of them would leave.
function candidates(filter) {
  const of = INDEX.episodes;
  const needle = filter.search.trim().toLowerCase();
  const found = [];
  for (let i = 0; i < of.run.length; i++) {
    if (filter.run !== "" && of.run[i] !== Number(filter.run)) continue;
    if (filter.category !== "" && of.category[i] !== Number(filter.category)) continue;
    if (needle && !of.task[i].toLowerCase().includes(needle) && !(TEXTS[i] || "").includes(needle)) continue;
    found.push(i);
  }
  return found;
}

function select(filter) {
  const possible = candidates(filter);
  const found = possible.filter((i) => passesOutcome(i, filter) && passesFlag(i, filter));
  if (SORTS[filter.sort]) found.sort(SORTS[filter.sort]);
  return [found, possible];
}
