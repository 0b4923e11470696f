"use strict";
// The charts of the page, drawn by Observable Plot when they come into sight.

const report = JSON.parse(document.getElementById("data").textContent);
const encodings = new Map(report.encodings.map((one, place) => [
  one.label, {...one, place, colour: `var(--e${place})`, symbol: symbolOf(one.marker)},
]));
const FEW = 8; // encodings whose curves can be told apart
const FIRST = 6; // of many, so many are switched on at first
const show = (value, digits = 4) => value === null ? "–"
  : Number(value).toLocaleString("en", {maximumSignificantDigits: digits});
const whole = value => Number(value).toLocaleString("en", {maximumFractionDigits: 6});

function symbolOf(marker) {
  const polygon = (corners, turn) => ({draw(context, size) {
    const radius = Math.sqrt(size / corners * 2 / Math.sin(2 * Math.PI / corners));
    for (let corner = 0; corner < corners; corner++) {
      const angle = turn + corner * 2 * Math.PI / corners;
      context[corner ? "lineTo" : "moveTo"](radius * Math.cos(angle), radius * Math.sin(angle));
    }
    context.closePath();
  }});
  const cross = turn => ({draw(context, size) {
    const arm = Math.sqrt(size / 5) / 2;
    const corners = [[-3, -1], [-1, -1], [-1, -3], [1, -3], [1, -1], [3, -1], [3, 1], [1, 1], [1, 3], [-1, 3], [-1, 1], [-3, 1]];
    corners.forEach(([x, y], corner) => {
      const place = [(x * Math.cos(turn) - y * Math.sin(turn)) * arm, (x * Math.sin(turn) + y * Math.cos(turn)) * arm];
      context[corner ? "lineTo" : "moveTo"](...place);
    });
    context.closePath();
  }});
  const up = -Math.PI / 2;
  return {
    o: "circle", s: "square", "^": polygon(3, up), v: polygon(3, -up), "<": polygon(3, Math.PI), ">": polygon(3, 0),
    D: polygon(4, up), p: polygon(5, up), h: polygon(6, up), P: cross(0), X: cross(Math.PI / 4),
  }[marker] ?? "circle";
}

// Of ascending places, those whose labels have room, the last always.
function keepApart(values, position, room) {
  const kept = [];
  for (const value of [...values].reverse()) {
    if (!kept.length || Math.abs(position(kept.at(-1)) - position(value)) >= room) kept.push(value);
  }
  return kept.reverse();
}

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
  const lengths = [...new Set(Object.values(chart.series).flatMap(line => line.map(point => point[0])))].sort(d3.ascending);
  const marks = [Plot.gridY({stroke: "var(--line)", strokeOpacity: 1})];
  const left = 46, right = 14;
  const scale = (chart.logX ? d3.scaleLog : d3.scaleLinear)().domain(d3.extent(lengths)).range([left, width - right]);
  for (const [x, words] of chart.trained) {
    marks.push(Plot.ruleX([x], {stroke: "var(--quiet)", strokeDasharray: "4 3"}));
    const rightHalf = scale(x) > width / 2;
    marks.push(Plot.text([x], {x: d => d, frameAnchor: "top", dy: -15, textAnchor: rightHalf ? "end" : "start", dx: rightHalf ? 3 : -3, text: () => words, fill: "var(--quiet)", fontSize: 11}));
  }
  for (const one of chart.references) {
    marks.push(Plot.line(one.points, {stroke: "var(--quiet)", strokeDasharray: "1 3", strokeWidth: 1.5}));
  }
  for (const [, line] of dim) marks.push(Plot.line(line, {stroke: "currentColor", strokeOpacity: .13}));
  lit.forEach(([label, line], order) => {
    const {colour, symbol, place} = encodings.get(label);
    const learned = table.solved[label][0] > 0;
    const look = {className: `curve e-${place}`};
    const bars = line.filter(point => point[2] !== null && point[3] !== null);
    marks.push(Plot.ruleX(bars, {x: "0", y1: "2", y2: "3", stroke: colour, strokeOpacity: .45, ...look}));
    marks.push(Plot.line(line, {x: "0", y: "1", stroke: colour, strokeWidth: 2.6 - 1.3 * order / Math.max(1, lit.length), strokeDasharray: learned ? undefined : "5 3", ...look}));
    marks.push(Plot.dot(line, {x: "0", y: "1", symbol, r: 3.6, fill: learned ? colour : "var(--panel)", stroke: colour, ...look}));
  });
  const spread = table.spread === "seeds" ? "mean ± sd" : "95 % interval";
  marks.push(tip(points, ({label, x, y, low, high, seeds}) =>
    `${label}\n${whole(x)}: ${show(y)}${low === null ? "" : `\n${spread}: ${show(low)} to ${show(high)}`}\n${seeds} ${seeds === 1 ? "seed" : "seeds"}`));
  const ticks = keepApart(lengths, scale, 38);
  marks.push(Plot.axisX(ticks, {text: d => whole(d), label: axisLabel(chart.x, width), labelAnchor: "center", labelArrow: "none"}));
  return draw({
    width, height: Math.round(Math.min(300, Math.max(220, width * .68))), marginLeft: left, marginRight: right, marginTop: 26, marginBottom: 40,
    x: {type: chart.logX ? "log" : "linear", domain: widen(lengths, chart.logX)},
    y: {type: chart.logY ? "log" : "linear", domain: chart.domain, label: null, ticks: 5, clamp: true, ...(chart.logY ? {ticks: 4, tickFormat: "~s"} : {})},
    marks,
  });
}

function widen([...values], log) {
  const [low, high] = d3.extent(values);
  if (low === high) return log ? [low / 2, high * 2] : [low - 1, high + 1];
  if (log) return [low / (high / low) ** .03, high * (high / low) ** .03];
  return [low - (high - low) * .03, high + (high - low) * .03];
}

function scores(chart, width, shown, table) {
  const lit = Object.entries(chart.series).filter(([label]) => shown.visible.has(label) && shown.on.has(label));
  const marks = [Plot.gridY({stroke: "var(--line)", strokeOpacity: 1})];
  for (const [x, y] of chart.references) {
    marks.push(Plot.ruleY([y], {x1: x - .42, x2: x + .42, stroke: "var(--quiet)", strokeDasharray: "1 3", strokeWidth: 1.5}));
  }
  const points = [];
  lit.forEach(([label, line], order) => {
    const {colour, symbol} = encodings.get(label);
    const learned = table.solved[label][0] > 0;
    const own = line.map(([x, y, low, high, seeds]) => ({
      label, x: x + (order - (lit.length - 1) / 2) * .7 / Math.max(4, lit.length), y, low, high, seeds, part: chart.ticks[x][0],
    })).filter(point => point.y !== null);
    points.push(...own);
    marks.push(Plot.ruleX(own.filter(point => point.low !== null), {x: "x", y1: "low", y2: "high", stroke: colour, strokeOpacity: .45}));
    marks.push(Plot.dot(own, {x: "x", y: "y", symbol, r: 4, fill: learned ? colour : "var(--panel)", stroke: colour}));
  });
  marks.push(tip(points, ({label, part, y, low, high}) => `${label}\n${part}: ${show(y)}${low === null ? "" : ` (${show(low)} to ${show(high)})`}`));
  const last = chart.ticks.length - 1;
  const wide = Math.max(width, 92 * chart.ticks.length);
  return draw({
    width: wide, height: 330, marginLeft: 46, marginBottom: 66,
    x: {domain: [-.55, last + .55], ticks: d3.range(last + 1), tickFormat: place => chart.ticks[place].slice(0, 2).join("\n"), tickSize: 0, label: axisLabel(`part, ${chart.x}`, width), labelAnchor: "center", labelArrow: "none"},
    y: {zero: true, label: null, ticks: 5},
    marks,
  });
}

// A label of an axis without what is in brackets.
const brief = words => axisLabel(words.split(" (")[0], 180);

function heatmap(chart, grid, width) {
  const [across, up] = [chart.xs.length, chart.ys.length];
  const cells = grid.flatMap((row, j) => row.map((value, i) => ({x1: i, x2: i + 1, y1: j, y2: j + 1, value, i, j}))).filter(cell => cell.value !== null);
  const few = (values, room) => {
    const step = Math.max(1, Math.ceil(values.length / room));
    return d3.range(values.length - 1, -1, -step).map(place => place + .5);
  };
  const ticks = values => place => whole(values[Math.floor(place)]);
  const [tx, ty] = chart.trained;
  const right = tx === null ? across : chart.xs.filter(x => x <= tx).length;
  const top = ty === null ? up : chart.ys.filter(y => y <= ty).length;
  const border = [...(tx === null ? [] : [[right, 0]]), [right, top], ...(ty === null ? [] : [[0, top]])];
  const marks = [Plot.rect(cells, {x1: "x1", x2: "x2", y1: "y1", y2: "y2", fill: "value", insetRight: -.4, insetTop: -.4})];
  if (tx !== null || ty !== null) {
    marks.push(Plot.line(border, {stroke: "#fff", strokeWidth: 3, strokeLinejoin: "miter"}));
    marks.push(Plot.line(border, {stroke: "#000", strokeWidth: 1.4, strokeDasharray: "4 2", strokeLinejoin: "miter"}));
  }
  marks.push(Plot.tip(cells, Plot.pointer({
    x: cell => cell.i + .5, y: cell => cell.j + .5, fontSize: 12, fill: "var(--panel)", stroke: "var(--line)",
    title: cell => `${show(cell.value)}\n${brief(chart.y)}: ${whole(chart.ys[cell.j])}\n${brief(chart.x)}: ${whole(chart.xs[cell.i])}`,
  })));
  return draw({
    width, height: Math.round(width * .82), marginLeft: 34, marginRight: 4, marginTop: 6, marginBottom: 22,
    x: {domain: [0, across], ticks: few(chart.xs, 5), tickFormat: ticks(chart.xs), label: null, tickSize: 3},
    y: {domain: [0, up], ticks: few(chart.ys, 6), tickFormat: ticks(chart.ys), label: null, tickSize: 3},
    color: {type: "linear", scheme: "cividis", domain: chart.domain, clamp: true},
    marks,
  });
}

function gallery(chart, lines, width) {
  const points = lines.flatMap(([length, line]) => line.map(([x, y]) => ({x, y, length}))).filter(point => point.y !== null);
  const widths = [4, 2.2, 1];
  const inks = [.28, .6, 1];
  const last = d3.max(points, point => point.x) ?? 1;
  const [low, high] = d3.extent(points, point => point.y);
  const flat = high - low < .2;
  const marks = lines.map(([, line], order) => Plot.line(line, {stroke: "var(--accent)", strokeWidth: widths[order % 3], strokeOpacity: inks[order % 3]}));
  if (chart.trained !== null) marks.unshift(Plot.ruleX([chart.trained], {stroke: "var(--quiet)", strokeDasharray: "4 3"}));
  marks.push(tip(points, ({x, y, length}) => `${whole(x)}: ${show(y)}\nlength ${whole(length)}`));
  return draw({
    width, height: Math.round(width * .72), marginLeft: 34, marginRight: 6, marginTop: 6, marginBottom: 22,
    x: {type: "symlog", ticks: [0, 1, 4, 16, 64, 256, 1024, 4096].filter(tick => tick <= last), tickFormat: whole, label: null, tickSize: 3},
    y: {ticks: 4, label: null, tickSize: 3, ...(flat ? {domain: [(low + high) / 2 - .1, (low + high) / 2 + .1]} : {nice: true})},
    marks: [Plot.gridY({stroke: "var(--line)", strokeOpacity: 1}), ...marks],
  });
}

function cost(chart, width, shown) {
  const points = Object.entries(chart.series).filter(([label]) => shown.visible.has(label)).map(([label, [x, y]]) => ({label, x, y}));
  const height = Math.round(Math.min(330, Math.max(240, width * .68)));
  const frame = {left: 46, right: 16, top: 18, bottom: 40};
  const pad = (key, log) => widen(d3.extent(points, point => point[key]), log);
  const x = d3.scaleLinear().domain(pad("x")).nice().range([frame.left, width - frame.right]);
  const y = d3.scaleLinear().domain(pad("y")).nice().range([height - frame.bottom, frame.top]);
  const names = placeLabels(points.map(point => ({...point, px: x(point.x), py: y(point.y)})), width);
  const marks = [Plot.gridX({stroke: "var(--line)", strokeOpacity: 1}), Plot.gridY({stroke: "var(--line)", strokeOpacity: 1})];
  for (const point of points) {
    const {colour, symbol} = encodings.get(point.label);
    marks.push(Plot.dot([point], {x: "x", y: "y", symbol, r: 5, fill: colour}));
  }
  for (const name of names) marks.push(Plot.text([name], {x: "x", y: "y", text: "label", dx: name.dx, dy: name.dy, textAnchor: name.anchor, fontSize: 11}));
  marks.push(tip(points, point => `${point.label}\n${axisLabel(chart.x, 220)}: ${show(point.x)}\n${axisLabel(chart.y, 220)}: ${show(point.y)}`));
  return draw({
    width, height, marginLeft: frame.left, marginRight: frame.right, marginTop: frame.top, marginBottom: frame.bottom,
    x: {domain: x.domain(), ticks: Math.floor(width / 70), label: axisLabel(chart.x, width), labelAnchor: "center", labelArrow: "none"},
    y: {domain: y.domain(), ticks: 5, label: null},
    marks,
  });
}

// A place beside each point where its name covers neither names nor points; else none.
function placeLabels(points, width) {
  const taken = points.map(({px, py}) => [px - 6, py - 6, px + 6, py + 6]);
  const free = box => box[0] > 40 && box[2] < width - 2 && taken.every(other => box[2] < other[0] || box[0] > other[2] || box[3] < other[1] || box[1] > other[3]);
  const found = [];
  for (const point of points) {
    const long = point.label.length * 6.3;
    for (const [dx, dy, anchor] of [[9, 0, "start"], [-9, 0, "end"], [0, -12, "middle"], [0, 13, "middle"]]) {
      const start = point.px + dx - (anchor === "end" ? long : anchor === "middle" ? long / 2 : 0);
      const box = [start, point.py + dy - 6, start + long, point.py + dy + 6];
      if (free(box)) {
        taken.push(box);
        found.push({...point, dx, dy, anchor});
        break;
      }
    }
  }
  return found;
}
