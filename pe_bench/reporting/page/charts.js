"use strict";
// The charts of the page, drawn by Observable Plot when they become visible.

const report = JSON.parse(document.getElementById("data").textContent);
const encodings = new Map(report.encodings.map((one, index) => [
  one.label, {...one, index, colour: `var(--e${index})`, symbol: symbolOf(one.outline)},
]));
const FEW = 8; // encodings whose curves can be distinguished
const FIRST = 6; // number of series that are on at first, if there are many
const show = (value, digits = 4) => value === null ? "–"
  : Number(value).toLocaleString("en", {maximumSignificantDigits: digits});
const whole = value => Number(value).toLocaleString("en", {maximumFractionDigits: 6});

// A symbol with the corners that matplotlib gives a marker; without corners it is a circle.
function symbolOf(outline) {
  if (!outline.length) return "circle";
  return {draw(context, size) {
    const width = 2 * Math.sqrt(size / Math.PI); // of a circle of this area
    outline.forEach(([x, y], corner) => context[corner ? "lineTo" : "moveTo"](x * width, y * width));
    context.closePath();
  }};
}

const UNKNOWN = {colour: "var(--quiet)", symbol: "circle", index: "none"}; // an encoding without a row on the page

// The series that filters and legend show. Only rows of the table can be switched off.
function litSeries(chart, shown, table) {
  const isLit = label => (!encodings.has(label) || shown.visible.has(label)) && (!table.ranking.includes(label) || shown.on.has(label));
  return Object.entries(chart.series).filter(([label]) => isLit(label));
}

const DOTTED = {stroke: "var(--quiet)", strokeDasharray: "1 3", strokeWidth: 1.5}; // a baseline

function tip(points, words) {
  return Plot.tip(points, Plot.pointer({
    x: "x", y: "y", title: words, fontSize: 12, lineWidth: 30, stroke: "var(--line)", fill: "var(--panel)", maxRadius: 60,
  }));
}

function draw(options) {
  return Plot.plot({
    style: {fontSize: "12px", fontFamily: "inherit", background: "transparent"},
    ...options,
  });
}

// Lines below a label of the axis that is too long for the width of a panel.
function axisLabel(words, width) {
  const most = Math.max(16, Math.floor(width / 6.4));
  return words.length > most ? `${words.slice(0, most - 1)}…` : words;
}

function curve(chart, width, shown, table) {
  const all = Object.entries(chart.series).filter(([label]) => shown.visible.has(label));
  const lit = all.filter(([label]) => shown.on.has(label));
  const dim = all.filter(([label]) => !shown.on.has(label));
  const points = lit.flatMap(([label, line]) => line.map(([x, y, low, high, seeds]) => ({label, x, y, low, high, seeds})))
    .filter(point => point.y !== null);
  const marks = [Plot.gridY({stroke: "var(--line)", strokeOpacity: 1}), ...trained(chart)];
  for (const [, line] of chart.baselines) marks.push(Plot.line(line, DOTTED));
  for (const [, line] of dim) marks.push(Plot.line(line, {stroke: "currentColor", strokeOpacity: .13}));
  lit.forEach(([label, line], order) => {
    const {colour, symbol, index} = encodings.get(label);
    const learned = table.solved[label][0] > 0;
    const look = {className: `curve e-${index}`};
    const bars = line.filter(point => point[2] !== null && point[3] !== null);
    marks.push(Plot.ruleX(bars, {x: "0", y1: "2", y2: "3", stroke: colour, strokeOpacity: .45, ...look}));
    marks.push(Plot.line(line, {x: "0", y: "1", stroke: colour, strokeWidth: 2.6 - 1.3 * order / Math.max(1, lit.length), strokeDasharray: learned ? undefined : "5 3", ...look}));
    marks.push(Plot.dot(line, {x: "0", y: "1", symbol, r: 3.6, fill: learned ? colour : "var(--panel)", stroke: colour, ...look}));
  });
  const spread = table.spread === "seeds" ? "mean ± sd" : "95 % interval";
  marks.push(tip(points, ({label, x, y, low, high, seeds}) =>
    `${label}\n${whole(x)}: ${show(y)}${low === null ? "" : `\n${spread}: ${show(low)} to ${show(high)}`}\n${seeds} ${seeds === 1 ? "seed" : "seeds"}`));
  marks.push(Plot.axisX(chart.ticks, {text: d => whole(d), label: axisLabel(chart.x, width), labelAnchor: "center", labelArrow: "none"}));
  return draw({
    width, height: Math.round(Math.min(300, Math.max(220, width * .68))), marginLeft: 46, marginRight: 14, marginTop: 26, marginBottom: 40,
    x: {type: chart.log_x ? "log" : "linear", domain: chart.x_limits},
    y: {type: chart.log_y ? "log" : "linear", domain: chart.y_limits, label: null, clamp: true, ...(chart.log_y ? {ticks: 4, tickFormat: "~s"} : {ticks: 5})},
    marks,
  });
}

// Lines at the end of the trained range, with labels above the panel.
const MARK_SIDES = {
  left: {textAnchor: "start", dx: -3}, center: {textAnchor: "middle"}, right: {textAnchor: "end", dx: 3},
};
function trained(chart) {
  return chart.trained.flatMap(([x, words, align]) => [
    Plot.ruleX([x], {stroke: "var(--quiet)", strokeDasharray: "4 3"}),
    Plot.text([x], {
      x: d => d, text: () => words, frameAnchor: "top", dy: -15, fill: "var(--quiet)", fontSize: 11,
      ...MARK_SIDES[align],
    }),
  ]);
}

function scores(chart, width, shown, table) {
  const lit = litSeries(chart, shown, table);
  const marks = [Plot.gridY({stroke: "var(--line)", strokeOpacity: 1}), ...trained(chart)];
  for (const [, [[x, y]]] of chart.baselines) marks.push(Plot.ruleY([y], {x1: x - .42, x2: x + .42, ...DOTTED}));
  const points = [];
  lit.forEach(([label, line], order) => {
    const {colour, symbol} = encodings.get(label);
    const learned = table.solved[label][0] > 0;
    const own = line.map(([x, y, low, high, seeds]) => ({
      label, x: x + (order - (lit.length - 1) / 2) * .7 / Math.max(4, lit.length), y, low, high, seeds, part: chart.parts[x],
    })).filter(point => point.y !== null);
    points.push(...own);
    marks.push(Plot.ruleX(own.filter(point => point.low !== null), {x: "x", y1: "low", y2: "high", stroke: colour, strokeOpacity: .45}));
    marks.push(Plot.dot(own, {x: "x", y: "y", symbol, r: 4, fill: learned ? colour : "var(--panel)", stroke: colour}));
  });
  marks.push(tip(points, ({label, part, y, low, high}) => `${label}\n${part}: ${show(y)}${low === null ? "" : ` (${show(low)} to ${show(high)})`}`));
  const last = chart.ticks.length - 1;
  const wide = Math.max(width, 92 * chart.ticks.length);
  const below = 40 + 13 * d3.max(chart.ticks, tick => tick.split("\n").length);
  return draw({
    width: wide, height: 264 + below, marginLeft: 46, marginTop: 26, marginBottom: below,
    x: {domain: [-.55, last + .55], ticks: d3.range(last + 1), tickFormat: index => chart.ticks[index], tickSize: 0, label: axisLabel(chart.x, width), labelAnchor: "center", labelArrow: "none"},
    y: {domain: chart.y_limits, label: null, ticks: 5},
    marks,
  });
}

// Learning curves: a quantity, given by its index, over the steps, with a band over seeds.
function training(chart, quantity, width, shown, table) {
  const [name, , , log, limits, ticks] = chart.quantities[quantity];
  const lit = litSeries(chart, shown, table);
  const marks = [Plot.gridY(ticks, {stroke: "var(--line)", strokeOpacity: 1})];
  const points = [];
  const lines = [];
  for (const [label, [steps, seeds, bands]] of lit) {
    const {colour, symbol, index} = encodings.get(label) ?? UNKNOWN;
    const [mean, low, high] = bands[name];
    const own = steps.map((x, i) => ({label, x, y: mean[i], low: low[i] ?? mean[i], high: high[i] ?? mean[i], seeds})).filter(point => point.y !== null);
    points.push(...own);
    const look = {className: `curve e-${index}`};
    const learned = !table.solved[label] || table.solved[label][0] > 0;
    if (low.length) marks.push(Plot.areaY(own, {x: "x", y1: "low", y2: "high", fill: colour, fillOpacity: .13, ...look}));
    lines.push(Plot.line(own, {x: "x", y: "y", stroke: colour, strokeWidth: 1.5, strokeDasharray: learned ? undefined : "5 3", ...look}));
    const marked = own.filter((_, i) => i % chart.every === 0);
    lines.push(Plot.dot(marked, {x: "x", y: "y", symbol, r: 3, fill: learned ? colour : "var(--panel)", stroke: colour, ...look}));
  }
  marks.push(...lines);
  marks.push(tip(points, ({label, x, y, low, high, seeds}) =>
    `${label}\nstep ${whole(x)}: ${show(y)}${low === high ? "" : `\n${show(low)} to ${show(high)}`}\n${seeds} ${seeds === 1 ? "seed" : "seeds"}`));
  return draw({
    width, height: Math.round(Math.min(300, Math.max(220, width * .68))), marginLeft: 52, marginRight: 14, marginTop: 14, marginBottom: 40,
    x: {domain: chart.x_limits, ticks: Math.floor(width / 70), label: axisLabel(chart.x, width), labelAnchor: "center", labelArrow: "none"},
    y: {type: log ? "log" : "linear", domain: limits, label: null, clamp: true, ticks, tickFormat: whole},
    marks,
  });
}

const LINES = {curve, scores}; // charts of series that the legend switches

// Shortens the label of an axis to the part before its brackets.
const brief = words => axisLabel(words.split(" (")[0], 180);

function heatmap(chart, grid, width) {
  const cells = grid.flatMap((row, j) => row.map((value, i) => ({x1: i, x2: i + 1, y1: j, y2: j + 1, value, i, j}))).filter(cell => cell.value !== null);
  const axis = (ticks, last) => ({
    domain: [0, last], ticks: ticks.map(([position]) => position), tickFormat: position => ticks.find(tick => tick[0] === position)[1], label: null, tickSize: 3,
  });
  const marks = [Plot.rect(cells, {x1: "x1", x2: "x2", y1: "y1", y2: "y2", fill: "value", insetRight: -.4, insetTop: -.4})];
  marks.push(Plot.line(chart.border, {stroke: "#fff", strokeWidth: 3, strokeLinejoin: "miter"}));
  marks.push(Plot.line(chart.border, {stroke: "#000", strokeWidth: 1.4, strokeDasharray: "4 2", strokeLinejoin: "miter"}));
  marks.push(Plot.tip(cells, Plot.pointer({
    x: cell => cell.i + .5, y: cell => cell.j + .5, fontSize: 12, fill: "var(--panel)", stroke: "var(--line)",
    title: cell => `${show(cell.value)}\n${brief(chart.y)}: ${whole(chart.ys[cell.j])}\n${brief(chart.x)}: ${whole(chart.xs[cell.i])}`,
  })));
  return draw({
    width, height: Math.round(width * .82), marginLeft: 38, marginRight: 4, marginTop: 6, marginBottom: 22,
    x: axis(chart.x_ticks, chart.xs.length),
    y: axis(chart.y_ticks, chart.ys.length),
    color: {type: "linear", scheme: "cividis", domain: chart.limits, clamp: true},
    marks,
  });
}

function gallery(chart, lines, width, label) {
  const points = lines.flatMap(([length, line]) => line.map(([x, y]) => ({x, y, length}))).filter(point => point.y !== null);
  const widths = [4, 2.2, 1];
  const inks = [.28, .6, 1];
  const marks = lines.map(([, line], order) => Plot.line(line, {stroke: "var(--accent)", strokeWidth: widths[order % 3], strokeOpacity: inks[order % 3]}));
  if (chart.trained !== null) marks.unshift(Plot.ruleX([chart.trained], {stroke: "var(--quiet)", strokeDasharray: "4 3"}));
  marks.push(tip(points, ({x, y, length}) => `${whole(x)}: ${show(y)}\nlength ${whole(length)}`));
  return draw({
    width, height: Math.round(width * .72), marginLeft: 34, marginRight: 6, marginTop: 6, marginBottom: 22,
    x: {type: "symlog", domain: chart.x_limits, ticks: chart.ticks, tickFormat: whole, label: null, tickSize: 3},
    y: {domain: chart.y_limits[label], ticks: 4, label: null, tickSize: 3},
    marks: [Plot.gridY({stroke: "var(--line)", strokeOpacity: 1}), ...marks],
  });
}

// How a name is written on a side of its point, see SIDES in chart_layout.py.
const SIDES = {
  right: {dx: 9, textAnchor: "start"}, left: {dx: -9, textAnchor: "end"}, above: {dy: -12}, below: {dy: 13},
};

function cost(chart, width, shown) {
  const points = Object.entries(chart.series).filter(([label]) => shown.visible.has(label)).map(([label, [x, y]]) => ({label, x, y}));
  const marks = [Plot.gridX({stroke: "var(--line)", strokeOpacity: 1}), Plot.gridY({stroke: "var(--line)", strokeOpacity: 1})];
  if (chart.baseline !== null) marks.push(Plot.ruleY([chart.baseline], DOTTED));
  for (const point of points) {
    const {colour, symbol} = encodings.get(point.label);
    const fill = chart.hollow.includes(point.label) ? "var(--panel)" : colour;
    marks.push(Plot.dot([point], {x: "x", y: "y", symbol, r: 5, fill, stroke: colour}));
    const side = chart.names[point.label];
    if (side) marks.push(Plot.text([point], {x: "x", y: "y", text: "label", fontSize: 11, ...SIDES[side]}));
  }
  marks.push(tip(points, point => `${point.label}\n${axisLabel(chart.x, 220)}: ${show(point.x)}\n${axisLabel(chart.y, 220)}: ${show(point.y)}`));
  return draw({
    width, height: Math.round(Math.min(330, Math.max(240, width * .68))), marginLeft: 46, marginRight: 16, marginTop: 18, marginBottom: 40,
    x: {domain: chart.x_limits, ticks: Math.floor(width / 70), label: axisLabel(chart.x, width), labelAnchor: "center", labelArrow: "none"},
    y: {domain: chart.y_limits, ticks: 5, label: null},
    marks,
  });
}
