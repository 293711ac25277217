// Frame, tabs, theme, keyboard. Starts the page.
let INDEX;
let tab = "overview";
const main = h("main", {});
let frame; // the episodes tab is built once and kept, so that its scroll position survives

const KEYS = [
  ["j k", "next, previous episode"], ["n p", "next, previous turn"], ["/", "search"], ["c", "side by side"], ["o", "token overlay"],
  ["s f d", "only solved, only failed, only drifting"], ["x", "clear filters"], ["1 2", "overview, episodes"], ["t", "light or dark"], ["?", "this help"],
];

function logo() {
  return s("svg", { width: 26, height: 26, viewBox: "0 0 26 26", "aria-hidden": "true" },
    s("rect", { x: 1, y: 1, width: 24, height: 24, rx: 7, fill: "var(--accent)" }),
    s("path", { d: "M6 17.5 L11 13 L14.5 15.5 L20 8", fill: "none", stroke: "var(--card)", "stroke-width": 2.2, "stroke-linecap": "round", "stroke-linejoin": "round" }),
    s("circle", { cx: 20, cy: 8, r: 2.4, fill: "var(--card)" }));
}

function top_() {
  const button = (name, label, count) => h("button", { role: "tab", "data-tab": name, onclick: () => show(name) }, label, count === undefined ? null : h("span", { class: "count num" }, count.toLocaleString("en")));
  return h("header", { class: "top" },
    h("div", { class: "brand" }, logo(), h("h1", { title: INDEX.title }, INDEX.title)),
    h("div", { class: "tabs", role: "tablist" }, button("overview", "Overview"), button("episodes", "Episodes", INDEX.episodes.run.length)),
    h("div", { class: "right" },
      h("button", { class: "icon", onclick: help, title: "Keyboard (?)", "aria-label": "Keyboard help" }, "?"),
      h("button", { class: "icon", onclick: flip, title: "Light or dark (t)", "aria-label": "Light or dark" }, "◐")));
}

function show(name) {
  tab = name;
  document.querySelectorAll("[data-tab]").forEach((b) => b.setAttribute("aria-selected", String(b.dataset.tab === name)));
  if (name === "overview") main.replaceChildren(overview());
  else {
    const fresh = !frame;
    frame ||= h("div", { class: "episodes" }, side(), h("section", { class: "read", style: "min-height:0" }, h("div", { class: "pane", id: "pane", tabindex: "-1" })));
    main.replaceChildren(frame);
    if (fresh) change({});
    if (current < 0 && shown.length) open(shown[0]);
    else if (fresh) drawEpisode();
    drawRows();
  }
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  try { localStorage.setItem("cope-theme", name); } catch { /* storage may be forbidden for local files; the theme then lasts as long as the page */ }
}

function flip() {
  theme(isDark() ? "light" : "dark");
  if (tab === "overview") show("overview");
}

function firstTheme() {
  let kept = null;
  try { kept = localStorage.getItem("cope-theme"); } catch { /* as above */ }
  document.documentElement.dataset.theme = kept || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function help() {
  const box = h("dialog", { onclose: () => box.remove(), onclick: () => box.close() }, h("h2", {}, "Keyboard"),
    h("table", {}, KEYS.map(([keys, what]) => h("tr", {}, h("td", {}, keys.split(" ").map((key) => [h("kbd", {}, key), " "])), h("td", {}, what)))));
  document.body.append(box);
  box.showModal();
}

function only(key, value) {
  change({ [key]: filter[key] === value ? "" : value });
  if (shown.length) open(shown[0]);
}

const COMMANDS = {
  1: () => show("overview"), 2: () => show("episodes"), t: flip, "?": help,
  j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1),
  n: () => jump(here + 1), p: () => jump(Math.max(0, here - 1)),
  "/": () => document.getElementById("search").focus(),
  c: () => { beside = beside >= 0 ? -1 : partner(current); open(current); },
  o: () => { const choices = [...document.querySelectorAll("#layer option")].map((x) => x.value); layer = choices[(choices.indexOf(layer) + 1) % choices.length] || "messages"; drawEpisode(); },
  s: () => only("outcome", "0"), f: () => only("outcome", "2"), d: () => only("flag", "any"),
  x: () => {
    document.querySelectorAll(".filters select:not(#sort)").forEach((node) => (node.value = ""));
    document.getElementById("search").value = "";
    change({ run: "", category: "", outcome: "", flag: "", search: "" });
  },
};
const ANYWHERE = ["1", "2", "t", "?"];

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog")) return;
  const typing = event.target.matches("input, select, textarea");
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const command = COMMANDS[event.key];
  if (!command || (tab !== "episodes" && !ANYWHERE.includes(event.key))) return;
  event.preventDefault();
  command();
}

async function start() {
  firstTheme();
  if (!("DecompressionStream" in window)) throw new Error("This report needs a browser of 2023 or later (DecompressionStream).");
  INDEX = await unpack("index");
  const asked = new URLSearchParams(location.hash.slice(1));
  const wanted = Number(asked.get("episode") ?? -1);
  if (wanted >= 0 && wanted < INDEX.episodes.run.length) {
    current = wanted;
    beside = Number(asked.get("beside") ?? -1);
    if (!(beside < INDEX.episodes.run.length)) beside = -1;
  }
  document.getElementById("app").replaceChildren(top_(), main);
  document.addEventListener("keydown", onKey);
  show(current >= 0 || !INDEX.hasOverview ? "episodes" : "overview");
  performance.mark("painted");
  await readTexts((share) => {
    const note = document.getElementById("reading");
    if (note) note.textContent = share < 1 ? `reading texts ${Math.round(100 * share)} %` : "";
    if (share === 1 && filter.search && frame) change({});
  });
  performance.mark("searchable");
}

start().catch((error) => {
  document.getElementById("app").replaceChildren(h("p", { class: "loading" }, String(error.message || error)));
});
