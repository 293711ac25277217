// Inline SVG: interval bars and learning curves.
function intervalBar(estimate, colour, low = 0, high = 1, width = 120) {
  const x = (v) => 3 + (width - 6) * Math.min(1, Math.max(0, (v - low) / (high - low || 1)));
  const bar = s("svg", { class: "ci", width, height: 16, viewBox: `0 0 ${width} 16`, role: "img" });
  bar.append(s("rect", { x: 3, y: 7, width: width - 6, height: 2, rx: 1, fill: "var(--line)" }));
  if (low < 0) bar.append(s("line", { x1: x(0), x2: x(0), y1: 2, y2: 14, stroke: "var(--faint)" }));
  if (estimate.low !== null) {
    bar.append(s("rect", { x: x(estimate.low), y: 5, width: Math.max(2, x(estimate.high) - x(estimate.low)), height: 6, rx: 3, fill: colour, opacity: 0.3 }));
  }
  bar.append(s("circle", { cx: x(estimate.value), cy: 8, r: 4, fill: colour }));
  return bar;
}

function ticks(low, high, count = 3) {
  const span = high - low || 1;
  const unit = 10 ** Math.floor(Math.log10(span / count));
  const step = [1, 2, 5, 10].map((m) => m * unit).find((u) => span / u <= count + 0.5);
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-6; v += step) found.push(Math.abs(v) < step * 1e-6 ? 0 : v);
  return found;
}

// Centred mean: a trailing one would lag behind the points.
function smooth(points) {
  const reach = Math.max(2, Math.round(points.length / 20));
  return points.map(([x], i) => {
    const near = points.slice(Math.max(0, i - reach), i + reach + 1);
    return [x, near.reduce((sum, p) => sum + p[1], 0) / near.length];
  });
}

const W = 340, H = 148, LEFT = 38, RIGHT = 8, TOP = 10, BOTTOM = 20;

// lines: [{colour, points: [[x, y], …], band: [[x, low, high], …] or undefined}]
function curve(name, also, lines) {
  const all = lines.flatMap((line) => [...line.points, ...(line.band || []).flatMap(([x, low, high]) => [[x, low], [x, high]])]);
  let [x0, x1] = [Math.min(...all.map((p) => p[0])), Math.max(...all.map((p) => p[0]))];
  let [y0, y1] = [Math.min(...all.map((p) => p[1])), Math.max(...all.map((p) => p[1]))];
  if (y0 === y1) [y0, y1] = [y0 - (Math.abs(y0) / 2 || 0.5), y1 + (Math.abs(y1) / 2 || 0.5)];
  if (y0 > 0 && y0 < 0.4 * y1) y0 = 0;
  if (x0 === x1) [x0, x1] = [x0 - 1, x1 + 1];
  const X = (v) => LEFT + ((W - LEFT - RIGHT) * (v - x0)) / (x1 - x0);
  const Y = (v) => H - BOTTOM - ((H - TOP - BOTTOM) * (v - y0)) / (y1 - y0);
  const path = (points) => points.map((p, i) => `${i ? "L" : "M"}${X(p[0]).toFixed(1)} ${Y(p[1]).toFixed(1)}`).join("");

  const plot = s("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": name });
  for (const v of ticks(y0, y1)) {
    plot.append(s("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: Y(v), y2: Y(v) }));
    plot.append(s("text", { x: LEFT - 6, y: Y(v) + 3, "text-anchor": "end" }, number(v)));
  }
  for (const v of ticks(x0, x1, 5)) {
    if (Number.isInteger(v)) plot.append(s("text", { x: X(v), y: H - 5, "text-anchor": "middle" }, number(v)));
  }
  for (const line of lines) {
    const long = line.points.length > 24;
    if (line.band) plot.append(s("path", { d: `${path(line.band.map(([x, low]) => [x, low]))}L${path(line.band.map(([x, , high]) => [x, high]).reverse()).slice(1)}Z`, fill: line.colour, opacity: 0.13 }));
    plot.append(s("path", { d: path(line.points), fill: "none", stroke: line.colour, "stroke-width": long ? 1 : 2, opacity: long ? 0.3 : 1, "stroke-linejoin": "round" }));
    if (long) plot.append(s("path", { d: path(smooth(line.points)), fill: "none", stroke: line.colour, "stroke-width": 2, "stroke-linejoin": "round" }));
    if (line.points.length < 13) for (const p of line.points) plot.append(s("circle", { cx: X(p[0]), cy: Y(p[1]), r: 2.6, fill: line.colour }));
  }
  const cursor = s("line", { class: "cursor", y1: TOP, y2: H - BOTTOM, visibility: "hidden" });
  plot.append(cursor);

  const last = () => lines.map((line) => number(line.points.at(-1)[1])).join(" · ");
  const read = h("span", { class: "read" }, last());
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const at = x0 + ((((event.clientX - box.left) * W) / box.width - LEFT) * (x1 - x0)) / (W - LEFT - RIGHT);
    const near = lines.map((line) => line.points.reduce((a, b) => (Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a)));
    cursor.setAttribute("x1", X(near[0][0]));
    cursor.setAttribute("x2", X(near[0][0]));
    cursor.setAttribute("visibility", "visible");
    read.textContent = `step ${number(near[0][0])}: ${near.map((p) => number(p[1], 4)).join(" · ")}`;
  });
  plot.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    read.textContent = last();
  });
  return h("figure", { class: "chart", style: "margin:0" }, h("figcaption", { class: "name" }, h("span", also.length ? { title: `the same numbers: ${also.join(", ")}` } : {}, also.length ? `${name} (+${also.length})` : name), read), plot);
}
