"use strict";
// Filters, sorting, legends, and the dialog with the origin of a number.

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const labels = report.encodings.map(one => one.label);
const visible = new Set(labels);
const pending = new Map(); // canvas -> what draws it
const drawn = new Set();
const tables = new Map(); // id -> its state

function make(tag, {text, ...attributes} = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  element.append(...children);
  return element;
}

// The text of a label, which may be broken after a sign between its options.
const breakable = text => text.split(/(?<=[:,=])/).flatMap((part, index) => index ? [make("wbr"), part] : [part]);

const swatch = label => make("i", {class: "dot", style: `--c: ${encodings.get(label).colour}`});

// Filters

function filter() {
  const words = $("#search").value.trim().toLowerCase();
  const families = new Set($$("[data-family][aria-pressed=true]").map(button => button.dataset.family));
  const learned = $("#learned").checked;
  const preset = $("#preset")?.value ?? "";
  visible.clear();
  for (const one of report.encodings) {
    if (families.has(one.family) && one.label.toLowerCase().includes(words)) visible.add(one.label);
  }
  for (const element of $$("[data-e]")) {
    const hidden = !visible.has(labels[element.dataset.e]) || (learned && "unlearned" in element.dataset);
    element.hidden = hidden;
  }
  for (const block of $$("[data-preset]")) block.hidden = Boolean(preset) && block.dataset.preset !== preset;
  for (const task of $$(".task")) task.hidden = $$(":scope > .block", task).every(block => block.hidden);
  $("#shown").textContent = `${visible.size} of ${labels.length} encodings`;
  redraw();
}

// Sorting

function valueOf(cell) {
  const text = cell.textContent.trim();
  const number = parseFloat(text.replaceAll(",", "").replace("−", "-"));
  return Number.isNaN(number) ? text.toLowerCase() : number;
}

function sort(heading) {
  const table = heading.closest("table");
  const column = [...heading.parentNode.children].indexOf(heading);
  const body = table.tBodies[0];
  const before = heading.getAttribute("aria-sort");
  const text = heading.textContent;
  const first = column === 0 || text.includes("↓") || text === "rank" || text.startsWith("p (") ? "ascending" : "descending";
  const order = before === null ? first : before === "ascending" ? "descending" : "ascending";
  const sign = order === "ascending" ? 1 : -1;
  const rows = [...body.rows].map((row, index) => ({row, index, value: column ? valueOf(row.cells[column]) : row.cells[0].textContent.trim().toLowerCase()}));
  rows.sort((a, b) => {
    const missing = (a.value === "–") - (b.value === "–");
    if (missing) return missing;
    return sign * (a.value < b.value ? -1 : a.value > b.value ? 1 : 0) || a.index - b.index;
  });
  for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", order);
  body.append(...rows.map(({row}) => row));
}

// How a number was made

function spreadOf(text, table) {
  if (text.includes("±")) return "Mean over seeds ± their standard deviation";
  if (text.includes(" to ")) return table.measuresTime ? "Median with quartiles over repetitions" : "One trained model, with the 95 % interval over items";
  return table.spread === "seeds" ? "Mean over seeds" : "One run";
}

function explain(cell) {
  const [id, column] = cell.dataset.c.includes(":") ? cell.dataset.c.split(":") : [cell.closest("table").dataset.table, cell.dataset.c];
  const label = labels[cell.closest("tr").dataset.e];
  const table = report.tables[id];
  const values = table.values[label]?.[column];
  const text = cell.firstChild.textContent.trim();
  const body = $("#number-body");
  const title = make("h3", {id: "number-title"}, swatch(label), label);
  const list = make("dl", {class: "facts"});
  const add = (name, ...content) => list.append(make("dt", {text: name}), make("dd", {}, ...content));
  const link = make("a", {href: `#${id}`, text: table.heading});
  add("table", link);
  add("settings", make("code", {text: table.settings}), " ", make("a", {href: `#${id}-how`, text: "all settings"}));
  const parts = [title, make("div", {class: "hint", text: table.columns[column]}), make("p", {class: "big", text}), make("p", {class: "hint", text: spreadOf(text, table)})];
  if (values) {
    const rows = values.map(([seed, value, low, high, n]) => make("tr", {},
      make("td", {text: seed}), make("td", {text: show(value, 6)}),
      make("td", {text: low === null || high === null ? "–" : `${show(low)} to ${show(high)}`}), make("td", {text: n === null ? "–" : whole(n)})));
    const head = make("tr", {}, ...["seed", "value", table.spread === "seeds" ? "95 % interval over items" : "interval", "items"].map(name => make("th", {text: name})));
    parts.push(make("div", {class: "scroll"}, make("table", {class: "plain"}, head, ...rows)));
  }
  const runs = table.runs[label];
  const each = field => [...new Set(runs.map(run => run[field]).filter(Boolean))].join(", ");
  const facts = [["code", 3, "commit "], ["version", 2, ""], ["device", 4, ""], ["finished", 5, ""]];
  for (const [name, field, before] of facts) if (each(field)) add(name, `${before}${name === "finished" ? `${runs.at(-1)[field]} UTC` : each(field)}`);
  const seconds = runs.map(run => run[6]).filter(value => value !== null);
  if (seconds.length) add("time", `${seconds.map(value => show(value, 3)).join(", ")} s a run`);
  const asks = (words, text) => {
    const copy = make("button", {type: "button", class: "copy", text: "copy"});
    copy.addEventListener("click", () => navigator.clipboard?.writeText(text).then(() => { copy.textContent = "copied"; }));
    return [make("p", {class: "hint"}, `${words} `, copy), make("pre", {class: "command", text})];
  };
  const word = text => /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
  const again = `pe-bench rerun ${word(`${label}/${table.task}/${runs[0][1]}`)}`;
  body.replaceChildren(...parts, list, ...asks(...table.commands[label]), ...asks("This command repeats one of the runs from its record in the folder of these results (--results), and compares the numbers:", again));
  for (const inner of $$("a", body)) inner.addEventListener("click", () => $("#number").close());
  $("#number").showModal();
}

// Charts

const watcher = new IntersectionObserver(entries => {
  for (const {isIntersecting, target} of entries) if (isIntersecting) { watcher.unobserve(target); drawn.add(target); drawOne(target); }
}, {rootMargin: "500px"});
const widths = new ResizeObserver(entries => {
  for (const {target} of entries) if (drawn.has(target) && Math.abs(target.clientWidth - target.dataset.width) > 4) drawOne(target);
});

function drawOne(canvas) {
  const width = Math.floor(canvas.clientWidth);
  if (!width) return;
  canvas.dataset.width = width;
  const chart = pending.get(canvas)(width);
  chart.setAttribute("role", "img");
  chart.setAttribute("aria-label", canvas.closest("figure").querySelector("figcaption").textContent);
  canvas.replaceChildren(chart);
}

function redraw(only) {
  for (const canvas of drawn) if (!only || only.contains(canvas)) drawOne(canvas);
}

// A chart with its texts, and buttons that save it.
//   rows: -> the rows of its CSV file
//   keys: -> the encodings of its legend, if it has one
//   more: further lines of the words of its SVG file
function panel(draws, caption, {label, says, table, rows, keys = () => [], more = [], ramp}) {
  const canvas = make("div", {class: "canvas"});
  const title = make("b", {}, ...(label ? breakable(caption) : [caption]));
  const words = make("figcaption", {}, ...(label ? [swatch(label)] : []), title);
  if (says) words.append(make("small", {text: says}));
  const nameOf = ending => fileName(`${table.heading} ${title.textContent} ${more[0] ?? ""}`, ending);
  const saves = {
    CSV: () => save(nameOf("csv"), csv(rows()), "text/csv"),
    SVG: () => {
      if (!canvas.firstChild) drawOne(canvas);
      const lines = [title.textContent, table.heading, ...more, says].filter(Boolean);
      save(nameOf("svg"), toSvg(canvas.firstChild, lines, keys(), ramp), "image/svg+xml");
    },
  };
  const buttons = Object.entries(saves).map(([kind, act]) => {
    const button = make("button", {type: "button", "aria-label": `${kind} file of ${caption}`, text: kind});
    button.addEventListener("click", act);
    return button;
  });
  const row = make("div", {class: "saves"}, ...buttons);
  const figure = make("figure", {class: "panel"}, words, ...(label ? [canvas, row] : [row, canvas]));
  if (label) figure.dataset.e = labels.indexOf(label);
  pending.set(canvas, draws);
  watcher.observe(canvas);
  widths.observe(canvas);
  return figure;
}

// A panel of learning curves with a choice of the quantity.
function trainingPanel(chart, state, table) {
  let quantity = 0;
  const caption = () => `${chart.title}: ${chart.quantities[quantity][2]}`;
  const figure = panel(width => training(chart, quantity, width, state, table), caption(), {
    says: chart.says, table, rows: () => ROWS.training(chart, quantity, state, table), keys: () => litSeries(chart, state, table).map(([label]) => label),
  });
  const choice = make("select", {class: "choice", "aria-label": "Quantity"}, ...chart.quantities.map(([, title], index) => make("option", {value: index, text: title})));
  choice.addEventListener("change", () => {
    quantity = Number(choice.value);
    $("figcaption b", figure).textContent = caption();
    drawOne($(".canvas", figure));
  });
  $(".canvas", figure).before(choice);
  return figure;
}

// Names the dotted lines of a chart.
function dotted(names) {
  return names.length ? `dotted: ${[...new Set(names)].join(", ")}` : "";
}

function legend(table, state, container) {
  const row = make("div", {class: "legend", role: "group", "aria-label": "Curves that are shown"});
  const buttons = table.ranking.map(label => {
    const button = make("button", {type: "button", "aria-pressed": state.on.has(label), style: `--c: ${encodings.get(label).colour}`}, swatch(label), ...breakable(encodings.get(label).short));
    button.dataset.e = labels.indexOf(label);
    button.addEventListener("click", () => {
      state.on.has(label) ? state.on.delete(label) : state.on.add(label);
      update();
    });
    const emphasize = on => {
      for (const curve of $$(`.curve`, container)) curve.style.opacity = on && !curve.classList.contains(`e-${encodings.get(label).index}`) ? .15 : "";
    };
    button.addEventListener("pointerenter", () => emphasize(true));
    button.addEventListener("pointerleave", () => emphasize(false));
    return button;
  });
  const update = () => {
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", state.on.has(table.ranking[index])));
    redraw(container);
  };
  const all = make("button", {type: "button", class: "all", text: "all"});
  const none = make("button", {type: "button", class: "all", text: "none"});
  all.addEventListener("click", () => { table.ranking.forEach(label => state.on.add(label)); update(); });
  none.addEventListener("click", () => { state.on.clear(); update(); });
  row.append(...buttons, all, none);
  return row;
}

function ramp({limits, z}) {
  const stops = d3.range(0, 1.01, .1).map(d3.interpolateCividis).join(",");
  return make("div", {class: "ramp"}, show(limits[0]), make("i", {style: `background: linear-gradient(90deg, ${stops})`}), show(limits[1]), make("span", {text: z}));
}

function charts(container) {
  const table = report.tables[container.dataset.charts];
  const kinds = table.charts;
  const many = table.ranking.length > FEW;
  const first = many ? [...table.ranking.slice(0, FIRST), ...table.ranking.filter(label => label === table.reference)] : table.ranking;
  const state = {on: new Set(first), visible};
  tables.set(container.dataset.charts, state);
  if (kinds.curves || kinds.scores || kinds.training) container.append(legend(table, state, container));
  const panels = make("div", {class: "panels"});
  const linePanel = (draws, chart, caption) => panel(width => LINES[draws](chart, width, state, table), caption, {
    says: [chart.says, dotted(chart.baselines.map(([name]) => name))].filter(Boolean).join("; "), table,
    rows: () => ROWS[draws](chart, state, table), keys: () => litSeries(chart, state, table).map(([label]) => label),
  });
  for (const chart of kinds.curves ?? []) panels.append(linePanel("curve", chart, `${chart.title}: ${chart.y}`));
  for (const chart of kinds.scores ?? []) container.append(make("div", {class: "scroll"}, linePanel("scores", chart, `scores of the parts: ${chart.y}`)));
  for (const chart of kinds.training ?? []) panels.append(trainingPanel(chart, state, table));
  for (const chart of kinds.costs ?? []) {
    panels.append(panel(width => cost(chart, width, state), `Cost against quality: ${chart.y}`, {
      says: [chart.says, dotted(chart.baseline === null ? [] : ["best baseline"])].filter(Boolean).join("; "), table,
      rows: () => ROWS.cost(chart, state), keys: () => Object.keys(chart.series).filter(label => visible.has(label) && !chart.names[label]),
    }));
  }
  if (panels.children.length) container.append(panels);
  for (const [name, list, draws] of [["map", kinds.maps ?? [], heatmap], ["gallery", kinds.galleries ?? [], gallery]]) {
    for (const chart of list) {
      const axes = `To the right: ${chart.x}. Upwards: ${chart.y}.`;
      container.append(make("h5", {text: chart.title}), make("p", {class: "hint", text: axes}));
      if (name === "map") container.append(ramp(chart));
      const panels = table.ranking.filter(label => chart.series[label]).map(label => {
        const [learned, seeds] = table.solved[label];
        const says = learned === seeds ? "" : `${learned ? `${learned} of ${seeds}` : "not"} learned`;
        return panel(width => draws(chart, chart.series[label], width, label), label, {
          label, says, table, rows: () => ROWS[name](chart, label), more: [chart.title, axes], ramp: name === "map" ? chart : undefined,
        });
      });
      container.append(make("div", {class: "small panels"}, ...panels));
    }
  }
}

function open() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let element = target; element; element = element.parentElement) if (element.tagName === "DETAILS") element.open = true;
  target.scrollIntoView({behavior: "instant"});
}

document.addEventListener("click", event => {
  const heading = event.target.closest?.(".data thead th");
  const cell = event.target.closest?.("td.n");
  const family = event.target.closest?.("[data-family]");
  if (heading) sort(heading);
  else if (cell) explain(cell);
  else if (family) {
    family.setAttribute("aria-pressed", family.getAttribute("aria-pressed") === "false");
    filter();
  }
});
document.addEventListener("keydown", event => {
  if (event.key === "Enter" && event.target.matches?.("td.n")) explain(event.target);
});
$("#number").addEventListener("click", event => { if (event.target === event.currentTarget) event.currentTarget.close(); });
$("#search").addEventListener("input", filter);
$("#learned").addEventListener("change", filter);
$("#preset")?.addEventListener("change", filter);
addEventListener("hashchange", open);
$$("[data-charts]").forEach(charts);
filter();
open();
