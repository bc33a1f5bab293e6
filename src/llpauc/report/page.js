"use strict";
(() => {
// --- metrics, computed from the ranks of the positives among the negatives ----------------------

/** Number of n that a fraction selects: ceil(fraction n), at least 1, exactly K for K/n. */
function selectedCount(fraction, n) {
  const product = fraction * n, nearest = Math.round(product);
  const count = Math.abs(product - nearest) <= 1e-12 * product ? nearest : Math.ceil(product);
  return Math.min(Math.max(count, Math.min(1, n)), n);
}

/** LLPAUC(alpha, beta); `ranks`: for each positive the number of negatives at or above it, ascending. */
function partialAuc(ranks, nNeg, alpha, beta) {
  const nPos = ranks.length, kPos = selectedCount(alpha, nPos), kNeg = selectedCount(beta, nNeg);
  if (!nPos || !nNeg) return { value: NaN, normalized: NaN, maximum: NaN, kPos, kNeg };
  let won = 0;
  for (let n = 0; n < kPos; n++) won += Math.max(0, kNeg - ranks[n]);
  const pairs = nPos * nNeg;
  return { value: won / pairs, normalized: won / (kPos * kNeg), maximum: (kPos * kNeg) / pairs, kPos, kNeg };
}

const fromSteps = steps => { let at = 0; return steps.map(step => (at += step)); };
window.llpauc = { selectedCount, partialAuc };

// --- text and elements: ids and titles are inserted as text, never as HTML ----------------------

const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}
const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const setText = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };
const count = n => n.toLocaleString("en-US");
const plural = (n, one, many = one + "s") => `${count(n)} ${n === 1 ? one : many}`;
const fixed = (value, digits = 4) => Number.isFinite(value) ? value.toFixed(digits) : "–";
const short = value => String(Number(value.toPrecision(3)));
const percent = fraction => Number.isFinite(fraction) ? `${(100 * fraction).toFixed(1)}\u00a0%` : "–";
const display = value => value === null || value === undefined ? "–" : typeof value !== "number" ? String(value)
  : Number.isInteger(value) ? count(value) : Math.abs(value) >= 100 ? count(Math.round(value)) : short(value);

// --- state --------------------------------------------------------------------------------------

const embedded = JSON.parse($("data").textContent);
const state = { about: null, user: null, views: [], items: [], run: 0, alpha: 0.7, beta: 0.1, key: null, requests: 0 };

/** Source of the data: embedded in a report, or requested from the server. */
const source = embedded ? {
  about: async () => embedded,
  find: async text => {
    if (!text) return embedded.users.slice(0, 200);
    const query = text.toLowerCase(), lower = embedded.users.map(id => id.toLowerCase());
    const starts = embedded.users.filter((_, at) => lower[at].startsWith(query));
    const contains = embedded.users.filter((_, at) => !lower[at].startsWith(query) && lower[at].includes(query));
    return [...starts, ...contains].slice(0, 50);
  },
  user: async id => {
    const at = embedded.users.indexOf(id);
    if (at < 0) throw new Error(`User “${id}” is not in this report, which contains ${plural(embedded.users.length, "user")}.`);
    return { views: embedded.views.map(of => of[at]), items: embedded.items };
  },
} : {
  about: () => request("page/about"),
  find: async text => (await request("page/users?text=" + encodeURIComponent(text))).users,
  user: async id => {
    const answer = await request("page/user?id=" + encodeURIComponent(id));
    if (answer.run !== state.about.runs[0].run) { state.about = await source.about(); showAbout(); }
    return { views: [answer.view], items: answer.items };
  },
};

async function request(path) {
  let answer;
  try {
    answer = await fetch(path, { headers: state.key ? { "X-API-Key": state.key } : {} });
  } catch {
    throw new Error("The server does not respond. Check that llpauc serve is still running.");
  }
  if (answer.status === 401) {
    $("key-form").hidden = false;
    if (!state.about) document.body.classList.add("locked");
    throw Object.assign(new Error(state.key ? "The server rejected this key." : "This server requires an API key."), { key: true });
  }
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(body.error || `The server responded with status ${answer.status}.`);
  return body;
}

function showProblem(error) {
  $("problem").hidden = !error;
  setText("problem", error ? error.message : "");
  if (error && error.key) $("key").focus();
}

// --- user search --------------------------------------------------------------------------------

const search = $("search"), matches = $("matches");
let active = -1, searching = 0;

function closeMatches() {
  matches.hidden = true; active = -1;
  search.setAttribute("aria-expanded", "false"); search.removeAttribute("aria-activedescendant");
}

function highlight(position) {
  const options = [...matches.querySelectorAll("[role=option]")];
  if (!options.length) return;
  active = (position + options.length) % options.length;
  options.forEach((option, at) => option.setAttribute("aria-selected", String(at === active)));
  options[active].scrollIntoView({ block: "nearest" });
  search.setAttribute("aria-activedescendant", options[active].id);
}

async function suggest(open = true) {
  const id = ++searching;
  let ids;
  try { ids = await source.find(search.value.trim()); } catch (error) { return showProblem(error); }
  if (id !== searching || !open) return;
  matches.replaceChildren(...ids.map((user, at) => {
    const option = h("li", { role: "option", id: `match-${at}`, "aria-selected": "false" }, user);
    option.addEventListener("mousedown", event => { event.preventDefault(); choose(user); });
    return option;
  }));
  if (!ids.length) matches.append(h("li", { class: "none" }, "No matching user."));
  matches.hidden = false; active = -1;
  search.setAttribute("aria-expanded", "true"); search.removeAttribute("aria-activedescendant");
}

search.addEventListener("input", () => suggest());
search.addEventListener("blur", () => { searching++; closeMatches(); });
search.addEventListener("click", () => { if (matches.hidden) suggest(); });
search.addEventListener("keydown", async event => {
  const open = !matches.hidden;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    if (!open) await suggest(); else highlight(event.key === "ArrowDown" ? active + 1 : active < 0 ? -1 : active - 1);
  } else if (event.key === "Enter") {
    event.preventDefault();
    const option = open && active >= 0 ? $(`match-${active}`) : null;
    const user = option ? option.textContent : search.value.trim();
    if (user) choose(user);
  } else if (event.key === "Escape") closeMatches();
});

async function choose(id) {
  const current = ++state.requests;
  searching++; closeMatches(); search.value = id; search.setAttribute("aria-busy", "true");
  try {
    const { items, views } = await source.user(id);
    if (current !== state.requests) return;
    Object.assign(state, { user: id, items, views: views.map(view => view && { ...view, ranks: fromSteps(view.rank_steps) }) });
    showProblem(null); showUser();
  } catch (error) {
    if (current === state.requests) showProblem(error);
  } finally {
    if (current === state.requests) search.removeAttribute("aria-busy");
  }
}

// --- the selected user --------------------------------------------------------------------------

const NAMES = { test: "test", valid: "validation" };
const BASIS = {
  test: view => `Positives: the ${plural(view.ranks.length, "test event")} of this user, which the model was not trained on. Negatives: the ${count(view.n_neg)} items without an event of this user.`,
  valid: view => `Positives: the ${plural(view.ranks.length, "validation event")} of this user. The model was not trained on them, but they were used to choose the best epoch. Negatives: the ${count(view.n_neg)} other items.`,
  history: view => `⚠ Too optimistic: the model was trained on these items. No event of this user was held out, so the positives are the ${plural(view.ranks.length, "item")} of the history. Negatives: the ${count(view.n_neg)} other items.`,
  nothing: () => "The run contains no event of this user, so there is nothing to measure. The list is the one for users without history.",
};

function showUser() {
  const view = state.views[state.run], run = state.about.runs[state.run];
  setText("user-status", view ? `User ${state.user}: ${plural(view.n_history, "item")} in the history.` : `User ${state.user} is not in run ${run.name}.`);
  const heldOut = view && (view.basis === "test" || view.basis === "valid");
  const part = heldOut ? NAMES[view.basis] : "";
  $("held-out-card").hidden = !heldOut;
  document.querySelector(".lists").classList.toggle("two", !heldOut);
  setText("basis", view ? BASIS[view.basis](view) : "");
  $("basis").classList.toggle("warn", Boolean(view) && view.basis === "history");
  const hits = new Set(heldOut ? view.positives : []);
  const nHits = view ? view.top.filter(item => hits.has(item)).length : 0;
  setText("top-note", !view ? "" : !view.top.length ? "There are no more items to recommend." : `The ${view.top.length} items with the highest scores that are not in the history.`
    + (view.basis === "test" ? ` ${count(nHits)} of them ${nHits === 1 ? "is a test item" : "are test items"}.` : ""));
  $("top").replaceChildren(...(view ? view.top.map((item, at) => entry(item, at + 1, short(view.scores[at]), hits.has(item) ? `✓ ${part}` : null)) : []));
  setText("held-out-note", heldOut ? `${cut(view.positives.length, view.ranks.length, part + " events")} The number on the right counts the negatives ranked at or above the item.` : "");
  $("held-out").replaceChildren(...(heldOut ? view.positives.map((item, at) => entry(item, at + 1, count(view.ranks[at]))) : []));
  setText("history-note", view ? `${cut(view.history.length, view.n_history, "items")} In no particular order.` : "");
  $("history").replaceChildren(...(view ? view.history.map(item => entry(item)) : []));
  measure();
}

const cut = (shown, all, what) => !all ? `No ${what}.` : shown < all ? `${count(shown)} of ${count(all)} ${what}.` : `All ${count(all)} ${what}.`;

function entry(item, position, score, badge) {
  const [id, title] = state.items[item];
  const name = h("span", {}, title || id, badge ? h("span", { class: "hit" }, badge) : null, title ? h("span", { class: "id" }, id) : null);
  return position ? h("li", {}, h("span", { class: "position" }, `${position}.`), name, h("span", { class: "score" }, score)) : h("li", {}, name);
}

/** Updates everything that depends on alpha and beta. */
function measure() {
  const { alpha, beta } = state, view = state.views[state.run];
  const ranks = view ? view.ranks : [], nNeg = view ? view.n_neg : 0;
  const ll = partialAuc(ranks, nNeg, alpha, beta), op = partialAuc(ranks, nNeg, 1, beta), auc = partialAuc(ranks, nNeg, 1, 1);
  setText("llpauc-at", `(${short(alpha)}, ${short(beta)})`); setText("opauc-at", `(${short(beta)})`);
  for (const [name, metric] of [["llpauc", ll], ["opauc", op], ["auc", auc]]) {
    setText(name, fixed(metric.value, 5));
    $(name).dataset.value = String(metric.value); $(name).dataset.normalized = String(metric.normalized);
  }
  setText("llpauc-of", Number.isFinite(ll.maximum) ? `${percent(ll.normalized)} of the maximum, ${fixed(ll.maximum, 5)}` : "");
  setText("opauc-of", Number.isFinite(op.maximum) ? `${percent(op.normalized)} of the maximum, ${fixed(op.maximum, 5)}` : "");
  setText("auc-of", Number.isFinite(auc.value) ? "The maximum is 1." : "");
  setText("meaning", meaning(view, ll, auc));
  showByRun();
  drawRoc();
}

function meaning(view, ll, auc) {
  if (!state.user) return "Select a user to see the ROC curve and the metrics.";
  if (!view || view.basis === "nothing") return "There is nothing to measure for this user.";
  if (!Number.isFinite(ll.value)) return "This user has every item, so there are no negatives.";
  return `LLPAUC compares the ${count(ll.kPos)} best-ranked of ${plural(view.ranks.length, "positive")} with the ${count(ll.kNeg)} highest-ranked of ${plural(view.n_neg, "negative")}. `
    + `In ${percent(ll.normalized)} of these pairs the positive is ranked above the negative: this is LLPAUC divided by its maximum. `
    + `Over all pairs the fraction is ${percent(auc.value)}, the AUC.`;
}

function showByRun() {
  const runs = state.about ? state.about.runs : [];
  $("by-run").hidden = runs.length < 2;
  if (runs.length < 2) return;
  const { alpha, beta } = state, all = embedded.views.map(of => of.filter(view => view && NAMES[view.basis]));
  const mean = at => {
    const values = all[at].map(view => partialAuc(view.ranks || (view.ranks = fromSteps(view.rank_steps)), view.n_neg, alpha, beta).value).filter(Number.isFinite);
    return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : NaN;
  };
  table("by-run-table", ["Run", "LLPAUC", "LLPAUC / maximum", "OPAUC", "AUC", "Mean LLPAUC in this report"], runs.map((run, at) => {
    const view = state.views[at], metric = (a, b) => view ? partialAuc(view.ranks, view.n_neg, a, b) : { value: NaN, normalized: NaN };
    const ll = metric(alpha, beta);
    return [keyed(run.name, at), fixed(ll.value, 5), percent(ll.normalized), fixed(metric(1, beta).value, 5), fixed(metric(1, 1).value, 5), fixed(mean(at), 5)];
  }));
  const kinds = new Set(state.views.map(view => view ? `${view.basis} ${view.ranks.length} ${view.n_neg}` : "unknown"));
  setText("by-run-note", (kinds.size > 1 ? "The runs hold out different events of this user, so their values are not directly comparable. " : "")
    + `The mean is over the users in this report with held-out events: ${runs.map((run, at) => `${count(all[at].length)} in ${run.name}`).join(", ")}.`);
}

// --- tables -------------------------------------------------------------------------------------

function table(id, head, rows) {
  const cells = (row, tag) => row.map((cell, at) => h(at && tag === "td" ? "td" : "th", tag === "th" ? { scope: "col" } : at ? {} : { scope: "row" }, cell));
  $(id).replaceChildren(h("thead", {}, h("tr", {}, ...cells(head, "th"))),
    h("tbody", {}, ...rows.map(row => row.length > 1 ? h("tr", {}, ...cells(row, "td"))
      : h("tr", { class: "group" }, h("th", { scope: "colgroup", colspan: head.length }, row[0])))));
}

/** A run's name with its line style, as in a legend. */
function keyed(name, at) {
  return h("span", {}, s("svg", { class: `key s${at % 6}`, width: 30, height: 12, "aria-hidden": "true" },
    s("path", { class: `curve s${at % 6}`, d: "M1 6H29", "stroke-dasharray": DASHES[at % 6] }), marker(15, 6, at, false)), name);
}

// --- drawing ------------------------------------------------------------------------------------

const DASHES = ["none", "8 4", "2 3", "9 3 2 3", "5 2", "12 4 2 4 2 4"];
const SHAPES = [
  (x, y) => `M${x - 4} ${y}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z`, (x, y) => `M${x - 4} ${y - 4}h8v8h-8z`, (x, y) => `M${x} ${y - 5}l5 9h-10z`,
  (x, y) => `M${x} ${y - 5}l5 5l-5 5l-5 -5z`, (x, y) => `M${x} ${y + 5}l5 -9h-10z`, (x, y) => `M${x - 5} ${y - 2}h10v4h-10z`,
];
const marker = (x, y, at, best) => s("path", { class: `mark s${at % 6}${best ? " best" : ""}`, d: SHAPES[at % 6](x, y) });

/** About `number` round values from low to high. */
function ticks(low, high, number) {
  const rough = (high - low) / number, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(unit => unit * power).find(unit => unit >= rough * 0.999);
  const values = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-6; at++) values.push(Number((at * step).toPrecision(8)));
  return values;
}

/** Draws the axes into an empty SVG; returns the scales and the group for the plot. */
function frame(svg, { x, y, xLabel, yLabel, right = 14 }) {
  const width = Math.max(svg.clientWidth, 200), height = Math.max(svg.clientHeight, 160);
  const yTicks = ticks(y[0], y[1], 5), wide = Math.max(...yTicks.map(tick => String(tick).length));
  const box = { left: 26 + 7 * wide, right: width - right, top: 10, bottom: height - 40 };
  const X = value => box.left + (value - x[0]) / (x[1] - x[0]) * (box.right - box.left);
  const Y = value => box.bottom - (value - y[0]) / (y[1] - y[0]) * (box.bottom - box.top);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const plot = s("g");
  svg.replaceChildren(
    ...ticks(x[0], x[1], Math.max(2, (box.right - box.left) / 80)).flatMap(tick => [s("path", { class: "grid", d: `M${X(tick)} ${box.top}V${box.bottom}` }),
      s("text", { x: X(tick), y: box.bottom + 16, "text-anchor": "middle" }, String(tick))]),
    ...yTicks.flatMap(tick => [s("path", { class: "grid", d: `M${box.left} ${Y(tick)}H${box.right}` }),
      s("text", { x: box.left - 6, y: Y(tick) + 4, "text-anchor": "end" }, String(tick))]),
    s("text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, xLabel),
    s("text", { x: 0, y: 0, "text-anchor": "middle", transform: `translate(12 ${(box.top + box.bottom) / 2}) rotate(-90)` }, yLabel),
    plot, s("path", { class: "axis", d: `M${box.left} ${box.top}V${box.bottom}H${box.right}` }));
  return { X, Y, box, plot };
}

/** Corners of the step curve up to the kNeg highest-ranked negatives and the kPos best-ranked positives. */
function corners(ranks, nNeg, kPos, kNeg) {
  const points = [[0, 0]], nPos = ranks.length;
  for (let n = 0; n < kPos; n++) {
    if (ranks[n] >= kNeg) break;
    const last = points[points.length - 1], x = ranks[n] / nNeg;
    if (x > last[0]) points.push([x, last[1]]);
    points.push([x, (n + 1) / nPos]);
  }
  points.push([kNeg / nNeg, points[points.length - 1][1]]);
  if (kPos === nPos && kNeg === nNeg) points.push([1, 1]);
  return points;
}

function hatching(id, className) {
  return s("pattern", { id, width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, s("path", { class: className, d: "M0 0V7" }));
}

function drawRoc() {
  const { alpha, beta } = state, shown = state.views.map((view, at) => ({ view, at })).filter(({ view }) => view && view.ranks.length && view.n_neg);
  shown.sort((a, b) => (a.at === state.run) - (b.at === state.run));
  const selected = state.views[state.run], measurable = selected && selected.ranks.length && selected.n_neg;
  const kPos = measurable ? selectedCount(alpha, selected.ranks.length) : 0, kNeg = measurable ? selectedCount(beta, selected.n_neg) : 0;
  const bounds = measurable ? [kNeg / selected.n_neg, kPos / selected.ranks.length] : [1, 1];
  for (const [id, x, y] of [["roc", [0, 1], [0, 1]], ["region", [0, bounds[0]], [0, bounds[1]]]]) {
    const svg = $(id), { X, Y, box, plot } = frame(svg, { x, y, xLabel: "false positive rate (FPR)", yLabel: "true positive rate (TPR)" });
    const path = points => "M" + points.map(([px, py]) => `${X(px).toFixed(2)} ${Y(py).toFixed(2)}`).join("L");
    if (!measurable) { plot.append(s("text", { x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2, "text-anchor": "middle" }, state.user ? "no data" : "no user selected")); continue; }
    const clip = `${id}-clip`, hatch = `${id}-hatch`;
    plot.append(s("defs", {}, hatching(hatch, "hatch"), s("clipPath", { id: clip }, s("rect", { x: box.left - 2, y: box.top - 2, width: box.right - box.left + 4, height: box.bottom - box.top + 4 }))));
    if (id === "roc") plot.append(s("path", { class: "diagonal", d: path([[0, 0], [1, 1]]) }));
    const area = path([...corners(selected.ranks, selected.n_neg, kPos, kNeg), [bounds[0], 0]]) + "Z";
    plot.append(s("path", { class: "area tint", d: area }), s("path", { class: "area", d: area, fill: `url(#${hatch})` }),
      s("rect", { class: "bound", x: X(0), y: Y(bounds[1]), width: X(bounds[0]) - X(0), height: Y(0) - Y(bounds[1]) }));
    const curves = s("g", { "clip-path": `url(#${clip})` });
    for (const { view, at } of shown) {
      curves.append(s("path", { class: `curve s${at % 6}${at === state.run ? " first" : ""}`, "stroke-dasharray": DASHES[at % 6], d: path(corners(view.ranks, view.n_neg, view.ranks.length, view.n_neg)) }));
    }
    plot.append(curves);
    if (id === "roc") {
      const above = Y(bounds[1]) - box.top > 22, label = `TPR ≤ ${short(bounds[1])}, FPR ≤ ${short(bounds[0])}`;
      const left = X(bounds[0]) + 7 + 6.6 * label.length < box.right;
      plot.append(s("text", { class: "strong", x: left ? X(bounds[0]) + 7 : X(bounds[0]) - 6, y: above ? Y(bounds[1]) - 6 : Y(0) - 8, "text-anchor": left ? "start" : "end" }, label));
    }
  }
}

function showMetrics() {
  const runs = state.about.runs, names = new Set();
  runs.forEach(run => run.epochs.forEach(epoch => Object.keys(epoch.valid).forEach(name => names.add(name))));
  const trained = runs.some(run => run.epochs.length);
  $("metric").replaceChildren(...[...names].map(name => h("option", { value: name }, `validation ${name}`)), ...(trained ? [h("option", { value: "" }, "training loss")] : []));
  for (const id of ["metric-field", "curves-figure", "curve-values"]) $(id).hidden = !trained;
  drawTraining();
}

function drawTraining() {
  const runs = state.about.runs, name = $("metric").value, label = name ? `validation ${name}` : "training loss";
  const series = runs.map((run, at) => ({
    at, name: run.name, best: run.epochs.filter(epoch => epoch.best).length ? Math.max(...run.epochs.filter(epoch => epoch.best).map(epoch => epoch.number)) : 0,
    points: run.epochs.map(epoch => [epoch.number, name ? epoch.valid[name] : epoch.loss]).filter(([, value]) => typeof value === "number"),
  })).filter(one => one.points.length);
  if (!series.length) return setText("training-note", "No training curve: this model is not trained in epochs, or the run contains no record of them.");
  const sentence = series.map(one => {
    const [, last] = one.points[one.points.length - 1], at = one.points.find(([number]) => number === one.best);
    return name && at ? `${one.name} is best at epoch ${one.best} of ${one.points.length} with ${fixed(at[1])}` : `${one.name} ends at ${fixed(last)} after ${plural(one.points.length, "epoch")}`;
  });
  setText("training-note", `${label[0].toUpperCase()}${label.slice(1)}: ${sentence.join("; ")}.` + (name ? " Higher is better. The filled marker is the epoch whose weights were saved." : " Lower is better. Different losses are not comparable."));
  const values = series.flatMap(one => one.points.map(([, value]) => value));
  let low = Math.min(...values), high = Math.max(...values);
  const margin = (high - low || Math.abs(high) || 1) * 0.08; low -= margin; high += margin;
  const last = Math.max(...series.map(one => one.points[one.points.length - 1][0]), 2);
  const { X, Y, plot, box } = frame($("curves"), { x: [1, last], y: [low, high], xLabel: "epoch", yLabel: label, right: 20 });
  for (const { at, points, best } of series) {
    plot.append(s("path", { class: `curve s${at % 6}`, "stroke-dasharray": DASHES[at % 6], d: "M" + points.map(([x, y]) => `${X(x).toFixed(1)} ${Y(y).toFixed(1)}`).join("L") }));
    const every = Math.ceil(points.length / 12);
    points.forEach(([x, y], n) => { if (x !== best && n % every === 0) plot.append(marker(X(x), Y(y), at, false)); });
    points.forEach(([x, y]) => { if (x === best) plot.append(marker(X(x), Y(y), at, true)); });
  }
  const legend = series.length > 1 ? [s("g", {})] : [];
  if (legend.length) series.forEach(({ at, name: run }, row) => {
    const y = (name ? box.bottom - 14 - 18 * (series.length - 1 - row) : box.top + 12 + 18 * row), x = box.right - 8;
    const label = s("text", { x: x - 38, y: y + 4, "text-anchor": "end" }, run.length > 24 ? run.slice(0, 23) + "…" : run);
    legend[0].append(label, s("path", { class: `curve s${at % 6}`, "stroke-dasharray": DASHES[at % 6], d: `M${x - 32} ${y}H${x}` }), marker(x - 16, y, at, false));
  });
  plot.append(...legend);
  const numbers = [...new Set(series.flatMap(one => one.points.map(([number]) => number)))].sort((a, b) => a - b);
  table("curve-table", ["epoch", ...series.map(one => one.name)], numbers.map(number => [String(number), ...series.map(one => {
    const point = one.points.find(([at]) => at === number);
    return point ? fixed(point[1], 5) + (name && number === one.best ? " ★" : "") : "–";
  })]));
}

function showRuns() {
  const runs = state.about.runs, many = runs.length > 1;
  setText("runs-title", many ? "Runs" : "Run"); setText("runs-link", many ? "Runs" : "Run");
  const line = (label, of) => [label, ...runs.map(run => display(of(run)))];
  const names = of => [...new Set(runs.flatMap(run => Object.keys(of(run))))];
  const rows = [line("model", run => run.model), line("loss", run => run.loss), line("data", run => run.data), line("users", run => run.users), line("items", run => run.items),
    line("events in the histories", run => run.events), line("held-out validation events", run => run.held_out.valid || 0), line("held-out test events", run => run.held_out.test || 0)];
  if (runs.some(run => run.updates)) rows.push(line("updates", run => run.updates));
  const parameters = names(run => run.parameters);
  if (parameters.length) rows.push(["Parameters"], ...parameters.map(name => line(name, run => run.parameters[name])));
  const test = run => run.test[run.model] || {}, measured = names(test);
  if (measured.length) rows.push(["Test metrics"], ...measured.map(name => line(name, run => test(run)[name])));
  const popular = run => run.model === "popularity" ? {} : run.test.popularity || {};
  const others = names(popular).filter(name => name !== "users");
  if (others.length) rows.push(["Test metrics of the popularity baseline"], ...others.map(name => line(name, run => popular(run)[name])));
  setText("runs-note", measured.length ? "Test metrics are means over the test users. “–”: not set or not measured." : "No test metrics were measured after training.");
  table("runs-table", ["", ...runs.map((run, at) => many ? keyed(run.name, at) : run.name)], rows);
}

function showTuning() {
  const tuning = state.about.tuning;
  $("tuning").hidden = $("tuning-link").hidden = !tuning;
  if (!tuning) return;
  const { best } = tuning;
  setText("tuning-note", `${count(tuning.complete)} of ${plural(tuning.trials, "trial")} ran to the end with values for alpha and beta. The best by validation ${tuning.metric} is trial ${best.trial}: ${fixed(best.value)} at alpha ${short(best.alpha)} and beta ${short(best.beta)}.`);
  table("map-table", ["alpha \\ beta", ...tuning.values[0].map((_, at) => cellName(tuning.beta_values, tuning.betas, at))],
    tuning.values.map((row, at) => [cellName(tuning.alpha_values, tuning.alphas, at), ...row.map(value => fixed(value === null ? NaN : value))]).reverse());
  drawMap();
}

const cellName = (values, edges, at) => values ? short(values[at]) : `${short(edges[at])} to ${short(edges[at + 1])}`;

function drawMap() {
  const tuning = state.about.tuning, svg = $("map");
  if (!tuning) return;
  const width = Math.max(svg.clientWidth, 200), height = Math.max(svg.clientHeight, 160), box = { left: 62, right: width - 4, top: 4, bottom: height - 42 };
  const rows = tuning.values.length, columns = tuning.values[0].length, wide = (box.right - box.left) / columns, tall = (box.bottom - box.top) / rows;
  const known = tuning.values.flat().filter(value => value !== null), low = Math.min(...known), high = Math.max(...known);
  const style = getComputedStyle(document.documentElement), rgb = name => style.getPropertyValue(name).trim().slice(1).match(/../g).map(two => parseInt(two, 16));
  const [cold, hot] = [rgb("--cold"), rgb("--hot")];
  const cellIndex = (edges, value) => { let at = 0; while (at < edges.length - 2 && value >= edges[at + 1]) at++; return at; };
  const star = [cellIndex(tuning.alphas, tuning.best.alpha), cellIndex(tuning.betas, tuning.best.beta)];
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const parts = [s("defs", {}, hatching("map-void", "void"))];
  tuning.values.forEach((line, row) => line.forEach((value, column) => {
    const x = box.left + column * wide, y = box.bottom - (row + 1) * tall, cell = { class: "cell", x, y, width: wide, height: tall };
    if (value === null) return parts.push(s("rect", { ...cell, fill: "url(#map-void)" }));
    const heat = high > low ? (value - low) / (high - low) : 1, mix = cold.map((from, at) => Math.round(from + heat * (hot[at] - from)));
    const light = (0.299 * mix[0] + 0.587 * mix[1] + 0.114 * mix[2]) > 140, ink = light ? "#101418" : "#ffffff";
    const best = row === star[0] && column === star[1], digits = wide < 40 ? 3 : 4;
    const label = s("text", { x: x + wide / 2, y: y + tall / 2 + 4, "text-anchor": "middle" }, value.toFixed(digits).replace(/^0/, ""));
    label.style.fill = ink;
    if (wide < 36) label.style.fontSize = "10px";
    if (best) { label.style.fontWeight = "700"; label.setAttribute("y", y + tall / 2 + 12); }
    parts.push(s("rect", { ...cell, fill: `rgb(${mix})` }, s("title", {}, `alpha ${cellName(tuning.alpha_values, tuning.alphas, row)}, beta ${cellName(tuning.beta_values, tuning.betas, column)}: ${value}`)), label);
    if (best) { const mark = s("text", { x: x + wide / 2, y: y + tall / 2 - 3, "text-anchor": "middle" }, "★"); mark.style.fill = ink; mark.style.fontSize = "16px"; parts.push(mark); }
  }));
  const every = Math.ceil(44 / wide), thin = (at, parts) => at % every === 0 ? parts : null;
  const scale = (values, edges, put) => values ? values.map((value, at) => put(at + 0.5, short(value), at)) : edges.map((edge, at) => put(at, String(Number(edge.toPrecision(2))), at));
  parts.push(...scale(tuning.beta_values, tuning.betas, (at, text, n) => thin(n, s("text", { x: Math.min(box.left + at * wide, box.right - 8), y: box.bottom + 16, "text-anchor": "middle" }, text))).filter(Boolean),
    ...scale(tuning.alpha_values, tuning.alphas, (at, text) => s("text", { x: box.left - 6, y: Math.max(box.bottom - at * tall + 4, 12), "text-anchor": "end" }, text)),
    s("text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, "beta (fraction of negatives), logarithmic"),
    s("text", { x: 0, y: 0, "text-anchor": "middle", transform: `translate(12 ${(box.top + box.bottom) / 2}) rotate(-90)` }, "alpha (fraction of positives)"));
  svg.replaceChildren(...parts);
}

// --- alpha and beta -----------------------------------------------------------------------------

const SLIDERS = { alpha: { to: Number, from: value => value }, beta: { to: position => Number((10 ** Number(position)).toPrecision(2)), from: value => Math.log10(value) } };

function setFraction(name, value, from) {
  state[name] = value;
  if (from !== "slider") $(`${name}-slider`).value = SLIDERS[name].from(value);
  if (from !== "number") $(name).value = String(value);
  $(`${name}-slider`).setAttribute("aria-valuetext", `${name} ${short(value)}`);
  $(name).removeAttribute("aria-invalid");
  if (!document.querySelector("[aria-invalid=true]")) setText("fraction-error", "");
}

for (const name of ["alpha", "beta"]) {
  $(`${name}-slider`).addEventListener("input", event => { setFraction(name, SLIDERS[name].to(event.target.value), "slider"); measure(); });
  $(name).addEventListener("input", event => {
    const value = Number(event.target.value);
    if (value > 0 && value <= 1) { setFraction(name, value, "number"); return measure(); }
    event.target.setAttribute("aria-invalid", "true");
    setText("fraction-error", `${name} must be above 0 and at most 1; the page still shows ${short(state[name])}.`);
  });
  $(name).addEventListener("blur", () => setFraction(name, state[name]));
}

// --- the whole page -----------------------------------------------------------------------------

function showAbout() {
  const runs = state.about.runs, first = runs[0];
  const describe = run => `${run.model}${run.loss ? ` trained with ${run.loss}` : ""}`;
  document.title = `${runs.map(run => run.name).join(", ")} – llpauc`;
  setText("title", runs.map(run => run.name).join(", "));
  setText("about", runs.length === 1
    ? `${describe(first)}${first.data ? ` on ${first.data}` : ""}: ${plural(first.users, "user")}, ${plural(first.items, "item")}, ${plural(first.events, "event")}.`
    : `${plural(runs.length, "run")}: ${runs.map(describe).join("; ")}.`);
  if (embedded) $("about").append(` This report contains ${count(embedded.users.length)} of ${plural(first.users, "user")}.`);
  $("run-field").hidden = runs.length < 2;
  $("run").replaceChildren(...runs.map((run, at) => h("option", { value: at }, run.name)));
  showMetrics(); showRuns(); showTuning();
}

$("run").addEventListener("change", event => {
  state.run = Number(event.target.value);
  if (state.user) showUser(); else measure();
});
$("metric").addEventListener("change", drawTraining);
$("key-form").addEventListener("submit", event => {
  event.preventDefault();
  state.key = $("key").value; $("key").value = ""; $("key-form").hidden = true;
  begin();
});

async function begin() {
  try { state.about = await source.about(); } catch (error) { setText("about", "The run is not available."); return showProblem(error); }
  showProblem(null); document.body.classList.remove("locked");
  const first = state.about.runs.find(run => run.alpha && run.beta) || {};
  setFraction("alpha", first.alpha || 0.7); setFraction("beta", first.beta || 0.1);
  showAbout(); measure();
  const user = embedded ? embedded.users[Math.floor(embedded.users.length / 2)] : state.about.runs[0].suggested_users[state.about.runs[0].suggested_users.length >> 1];
  if (user !== undefined) choose(user);
}

let redraw = 0;
function redrawSoon() {
  cancelAnimationFrame(redraw);
  redraw = requestAnimationFrame(() => { if (state.about) { drawRoc(); if (!$("curves-figure").hidden) drawTraining(); drawMap(); } });
}
new ResizeObserver(redrawSoon).observe(document.querySelector("main"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawSoon);
begin();
})();
