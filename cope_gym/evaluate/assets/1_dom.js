// Elements, numbers and colours. Text only ever enters the page as text nodes: what models write is hostile.
const SVG = "http://www.w3.org/2000/svg";
const PALETTE = ["#4453c8", "#d9480f", "#0b7285", "#9c36b5", "#2b8a3e", "#c2255c", "#846000", "#495057"];
const PALETTE_DARK = ["#97a3ff", "#ff9e64", "#5cc8d9", "#e599f7", "#69db7c", "#faa2c1", "#ffd43b", "#ced4da"];

function fill(node, props, kids) {
  for (const [key, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const kid of kids.flat(3)) {
    if (kid !== null && kid !== undefined && kid !== false) node.append(kid);
  }
  return node;
}
const h = (tag, props, ...kids) => fill(document.createElement(tag), props, kids);
const s = (tag, props, ...kids) => fill(document.createElementNS(SVG, tag), props, kids);

const isDark = () => document.documentElement.dataset.theme === "dark";
const colour = (i) => (isDark() ? PALETTE_DARK : PALETTE)[i % PALETTE.length];

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(1);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits)));
}
const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
const signed = (value, digits = 2) => `${value > 0 ? "+" : value < 0 ? "−" : "±"}${Math.abs(value).toFixed(digits)}`;
const runStep = (label, step) => (step === null || label === `step ${step}` ? label : `${label} · step ${step}`);
const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

// Splits text at a list of [start, end, class] ranges that do not overlap.
function marked(text, ranges) {
  const parts = [];
  let at = 0;
  for (const [start, end, name] of ranges) {
    if (start < at || end > text.length) continue;
    parts.push(text.slice(at, start), h("mark", { class: name }, text.slice(start, end)));
    at = end;
  }
  parts.push(text.slice(at));
  return parts;
}
