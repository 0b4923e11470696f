"use strict";
// Charts as files: the displayed values as CSV, and the drawing as an SVG without a style sheet.

const PADDING = 12; // around a saved drawing, pixels
const LINE = 17; // height of a line of its text
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
const SVG = "http://www.w3.org/2000/svg";
const pen = document.createElement("canvas").getContext("2d"); // measures text

// The rows of a CSV file for each kind of chart: the encodings that are switched on, and baselines.
const ROWS = {
  curve(chart, shown, table) {
    const rows = [["encoding", chart.x, chart.y, "low", "high", "seeds"]];
    for (const [label, line] of litSeries(chart, shown, table)) rows.push(...line.map(point => [label, ...point]));
    for (const [name, line] of chart.baselines) rows.push(...line.map(point => [name, ...point]));
    return rows;
  },
  scores(chart, shown, table) {
    const rows = [["encoding", "part", "metric", chart.y, "low", "high", "seeds"]];
    const partOf = index => [chart.parts[index], chart.metrics[index]];
    for (const [label, line] of litSeries(chart, shown, table)) rows.push(...line.map(([x, ...numbers]) => [label, ...partOf(x), ...numbers]));
    for (const [name, line] of chart.baselines) rows.push(...line.map(([x, y]) => [name, ...partOf(x), y]));
    return rows;
  },
  map(chart, label) {
    const rows = [["encoding", chart.y, chart.x, chart.z]];
    chart.series[label].forEach((row, j) => row.forEach((value, i) => rows.push([label, chart.ys[j], chart.xs[i], value])));
    return rows;
  },
  gallery(chart, label) {
    const rows = [["encoding", "length", chart.x, chart.y]];
    for (const [length, line] of chart.series[label]) rows.push(...line.map(point => [label, length, ...point]));
    return rows;
  },
  cost(chart, shown) {
    const rows = [["encoding", chart.x, chart.y]];
    for (const [label, point] of Object.entries(chart.series)) if (shown.visible.has(label)) rows.push([label, ...point]);
    return rows;
  },
  training(chart, quantity, shown, table) {
    const [name, , y] = chart.quantities[quantity];
    const rows = [["encoding", chart.x, y, "low", "high", "seeds"]];
    for (const [label, [steps, seeds, bands]] of litSeries(chart, shown, table)) {
      const [mean, low, high] = bands[name];
      steps.forEach((step, i) => rows.push([label, step, mean[i], low[i] ?? mean[i], high[i] ?? mean[i], seeds]));
    }
    return rows;
  },
};

function csv(rows) {
  const cell = value => {
    const text = value === null ? "" : `${value}`;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map(row => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

function save(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], {type}));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // the browser reads it after the click
}

// A name of letters, digits and hyphens.
function fileName(words, ending) {
  const plain = words.normalize("NFKD").toLowerCase().replace(/[^a-z0-9.=]+/g, "-").slice(0, 100).replace(/^[-.]+|[-.]+$/g, "");
  return `${plain || "chart"}.${ending}`;
}

function element(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// A copy of a drawing with colours instead of variables, and without its tooltip.
function freeze(drawing) {
  const copy = drawing.cloneNode(true);
  const originals = [drawing, ...drawing.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((one, index) => {
    for (const name of ["fill", "stroke"]) {
      if (/var\(/.test(one.getAttribute(name))) one.setAttribute(name, getComputedStyle(originals[index])[name]);
    }
    one.removeAttribute("style");
  });
  for (const one of copy.querySelectorAll("[aria-label=tip]")) one.remove();
  return copy;
}

// The lines of a text, each of at most the given width in pixels.
function breakLines(text, width) {
  pen.font = FONT;
  const lines = [];
  for (const word of text.split(" ")) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && pen.measureText(longer).width <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

// An SVG document with a drawing, its texts above and its legend below.
function toSvg(drawing, words, keys, ramp) {
  const look = getComputedStyle(drawing.closest("figure"));
  const width = Number(drawing.getAttribute("width"));
  const height = Number(drawing.getAttribute("height"));
  const parts = [];
  let y = PADDING;
  words.forEach((text, index) => {
    for (const line of breakLines(text, width)) {
      y += LINE;
      parts.push(element("text", {x: PADDING, y: y - 4, "font-weight": index ? 400 : 600, fill: "currentColor"}, line));
    }
  });
  const chart = freeze(drawing);
  chart.setAttribute("x", PADDING);
  chart.setAttribute("y", y);
  chart.setAttribute("overflow", "visible");
  chart.setAttribute("font-size", 12);
  parts.push(chart);
  y += height + 6;
  if (ramp) {
    const stops = d3.range(0, 11).map(step => element("stop", {offset: step / 10, "stop-color": d3.interpolateCividis(step / 10)}));
    const low = show(ramp.limits[0]);
    const begin = PADDING + pen.measureText(low).width + 6;
    parts.push(element("defs", {}, element("linearGradient", {id: "ramp"}, ...stops)));
    parts.push(element("text", {x: PADDING, y: y + 11, fill: "currentColor"}, low));
    parts.push(element("rect", {x: begin, y: y + 2, width: 80, height: 10, fill: "url(#ramp)"}));
    parts.push(element("text", {x: begin + 86, y: y + 11, fill: "currentColor"}, show(ramp.limits[1])));
    y += LINE;
  }
  let x = PADDING;
  for (const label of keys) {
    const {colour, symbol} = encodings.get(label) ?? UNKNOWN;
    const wide = 16 + pen.measureText(label).width + 14;
    if (x > PADDING && x + wide > width + PADDING) {
      x = PADDING;
      y += LINE;
    }
    const ink = getComputedStyle(document.documentElement).getPropertyValue(colour.slice(4, -1)).trim();
    const mark = d3.symbol(symbol === "circle" ? d3.symbolCircle : symbol, 40)();
    parts.push(element("path", {d: mark, fill: ink, transform: `translate(${x + 5},${y + 7})`}));
    parts.push(element("text", {x: x + 16, y: y + 11, fill: "currentColor"}, label));
    x += wide;
  }
  if (keys.length) y += LINE;
  const size = {width: width + 2 * PADDING, height: Math.ceil(y + PADDING)};
  const ground = element("rect", {...size, fill: look.backgroundColor});
  const root = element("svg", {
    ...size, viewBox: `0 0 ${size.width} ${size.height}`, color: look.color, "font-family": look.fontFamily, "font-size": 12,
  }, element("title", {}, words.join(". ")), ground, ...parts);
  return new XMLSerializer().serializeToString(root);
}
