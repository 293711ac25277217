// Token-level overlay: the recorded ids as text, coloured by loss mask, advantage, forecast or log-probability.
const rgba = (name, alpha) => `color-mix(in srgb, var(--${name}) ${Math.round(100 * Math.min(1, alpha))}%, transparent)`;
const LAYERS = {
  mask: { name: "loss mask", explain: ["not trained on", "trained on"], paint: (v) => (v ? rgba("agent", 0.28) : null) },
  advantages: { name: "advantage", explain: ["negative", "positive"], paint: (v, most) => (v ? rgba(v > 0 ? "solved" : "failed", (0.65 * Math.abs(v)) / most) : null) },
  forecast: { name: "forecast weight", explain: ["0", "largest"], paint: (v, most) => (v ? rgba("env", (0.7 * Math.abs(v)) / most) : null) },
  logprobs: { name: "surprise (−log p)", explain: ["certain", "surprising"], paint: (v, most) => (v ? rgba("truncated", (0.7 * Math.abs(v)) / most) : null) },
};
const MOST_TOKENS = 20000;

function tokenView(pair) {
  return h("div", { class: `talk${pair[1] ? " two" : ""}` }, pair.filter(Boolean).map((e) => h("div", { class: "cell" }, tokenColumn(e))));
}

function tokenColumn(e) {
  const record = e.tokens;
  if (!record || !record[layer]) return h("div", { class: "note-line" }, "This episode has no such token record.");
  const values = record[layer];
  const most = Math.max(1e-9, ...sample(values).map((v) => Math.abs(v ?? 0)));
  const of = LAYERS[layer];
  const count = Math.min(MOST_TOKENS, record.ids.length);
  const box = h("div", { class: "tokens" });
  for (let k = 0; k < count; k++) {
    const text = record.text ? record.text[k] : `${record.ids[k]} `;
    const paint = of.paint(values[k] ?? 0, most);
    box.append(h("span", { style: paint ? `background:${paint}` : null, class: record.mask && !record.mask[k] ? "off" : null, "data-k": k }, text));
  }
  box.addEventListener("pointerover", (event) => {
    const k = event.target.dataset.k;
    if (k !== undefined) event.target.title = ["ids", "mask", "advantages", "forecast", "logprobs"].filter((key) => record[key]).map((key) => `${key} ${number(record[key][k], 4)}`).join("\n");
  });
  const ends = [of.paint(-most, most), of.paint(most, most)];
  return [
    h("div", { class: "scale" }, of.explain[0], h("i", { style: `background:linear-gradient(90deg, ${layer === "advantages" ? ends[0] : "transparent"}, transparent 50%, ${ends[1]}); border:1px solid var(--line)` }), of.explain[1],
      h("span", {}, layer === "mask" ? "" : `(largest ${number(most)})`), record.ids.length > count ? `first ${count.toLocaleString("en")} of ${plural(record.ids.length, "token")}` : null),
    box,
  ];
}

// Spread arguments have a limit; long records are judged by every n-th value.
function sample(values) {
  const every = Math.ceil(values.length / 50000);
  return every === 1 ? values : values.filter((_, i) => i % every === 0);
}
