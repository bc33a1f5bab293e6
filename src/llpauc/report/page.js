"use strict";
(() => {
// --- what is measured: all of it from the ranks of the positives among the negatives ------------

/** How many of n a share selects: ceil(share n), at least 1, exactly K for K/n. */
function selectedCount(share, n) {
  const product = share * n, nearest = Math.round(product);
  const count = Math.abs(product - nearest) <= 1e-12 * product ? nearest : Math.ceil(product);
  return Math.min(Math.max(count, Math.min(1, n)), n);
}

/** LLPAUC(alpha, beta); `ranks`: of each positive the negatives at or above it, best first. */
function partialAuc(ranks, nNeg, alpha, beta) {
  const nPos = ranks.length, kPos = selectedCount(alpha, nPos), kNeg = selectedCount(beta, nNeg);
  if (!nPos || !nNeg) return { value: NaN, share: NaN, most: NaN, kPos, kNeg };
  let won = 0;
  for (let place = 0; place < kPos; place++) won += Math.max(0, kNeg - ranks[place]);
  const pairs = nPos * nNeg;
  return { value: won / pairs, share: won / (kPos * kNeg), most: (kPos * kNeg) / pairs, kPos, kNeg };
}

const fromSteps = steps => { let at = 0; return steps.map(step => (at += step)); };
window.llpauc = { selectedCount, partialAuc };

// --- words and elements: ids and titles are other people's, so they are text and nothing else ---

const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}
const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const say = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };
const count = n => n.toLocaleString("en-US");
const several = (n, one, many = one + "s") => `${count(n)} ${n === 1 ? one : many}`;
const fixed = (value, digits = 4) => Number.isFinite(value) ? value.toFixed(digits) : "–";
const short = value => String(Number(value.toPrecision(3)));
const percent = share => Number.isFinite(share) ? `${(100 * share).toFixed(1)}\u00a0%` : "–";
const figure = value => value === null || value === undefined ? "–" : typeof value !== "number" ? String(value)
  : Number.isInteger(value) ? count(value) : Math.abs(value) >= 100 ? count(Math.round(value)) : short(value);

// --- state --------------------------------------------------------------------------------------

const embedded = JSON.parse($("data").textContent);
const state = { about: null, user: null, views: [], items: [], run: 0, alpha: 0.7, beta: 0.1, key: null, asked: 0 };

/** Where data come from: the file itself, or the server that sent this page. */
const source = embedded ? {
  about: async () => embedded,
  find: async text => {
    if (!text) return embedded.users.slice(0, 200);
    const wanted = text.toLowerCase(), low = embedded.users.map(id => id.toLowerCase());
    const begins = embedded.users.filter((_, at) => low[at].startsWith(wanted));
    const has = embedded.users.filter((_, at) => !low[at].startsWith(wanted) && low[at].includes(wanted));
    return [...begins, ...has].slice(0, 50);
  },
  user: async id => {
    const at = embedded.users.indexOf(id);
    if (at < 0) throw new Error(`“${id}” is not among the ${several(embedded.users.length, "user")} of this report.`);
    return { views: embedded.views.map(of => of[at]), items: embedded.items };
  },
} : {
  about: () => ask("page/about"),
  find: async text => (await ask("page/users?text=" + encodeURIComponent(text))).users,
  user: async id => {
    const told = await ask("page/user?id=" + encodeURIComponent(id));
    if (told.run !== state.about.runs[0].run) { state.about = await source.about(); showAbout(); }
    return { views: [told.view], items: told.items };
  },
};

async function ask(path) {
  let answer;
  try {
    answer = await fetch(path, { headers: state.key ? { "X-API-Key": state.key } : {} });
  } catch {
    throw new Error("The server does not answer. Is llpauc serve still running?");
  }
  if (answer.status === 401) {
    $("key-form").hidden = false;
    if (!state.about) document.body.classList.add("locked");
    throw Object.assign(new Error(state.key ? "The server does not take this key." : "An API key is wanted."), { key: true });
  }
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(told.error || `The server answered with status ${answer.status}.`);
  return told;
}

function showProblem(error) {
  $("problem").hidden = !error;
  say("problem", error ? error.message : "");
  if (error && error.key) $("key").focus();
}

// --- choosing a user ----------------------------------------------------------------------------

const search = $("search"), found = $("found");
let active = -1, searching = 0;

function closeFound() {
  found.hidden = true; active = -1;
  search.setAttribute("aria-expanded", "false"); search.removeAttribute("aria-activedescendant");
}

function mark(place) {
  const options = [...found.querySelectorAll("[role=option]")];
  if (!options.length) return;
  active = (place + options.length) % options.length;
  options.forEach((option, at) => option.setAttribute("aria-selected", String(at === active)));
  options[active].scrollIntoView({ block: "nearest" });
  search.setAttribute("aria-activedescendant", options[active].id);
}

async function suggest(open = true) {
  const mine = ++searching;
  let ids;
  try { ids = await source.find(search.value.trim()); } catch (error) { return showProblem(error); }
  if (mine !== searching || !open) return;
  found.replaceChildren(...ids.map((id, at) => {
    const option = h("li", { role: "option", id: `found-${at}`, "aria-selected": "false" }, id);
    option.addEventListener("mousedown", event => { event.preventDefault(); choose(id); });
    return option;
  }));
  if (!ids.length) found.append(h("li", { class: "none" }, "No user has this in their id."));
  found.hidden = false; active = -1;
  search.setAttribute("aria-expanded", "true"); search.removeAttribute("aria-activedescendant");
}

search.addEventListener("input", () => suggest());
search.addEventListener("blur", () => { searching++; closeFound(); });
search.addEventListener("click", () => { if (found.hidden) suggest(); });
search.addEventListener("keydown", async event => {
  const open = !found.hidden;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    if (!open) await suggest(); else mark(event.key === "ArrowDown" ? active + 1 : active < 0 ? -1 : active - 1);
  } else if (event.key === "Enter") {
    event.preventDefault();
    const option = open && active >= 0 ? $(`found-${active}`) : null;
    const wanted = option ? option.textContent : search.value.trim();
    if (wanted) choose(wanted);
  } else if (event.key === "Escape") closeFound();
});

async function choose(id) {
  const mine = ++state.asked;
  searching++; closeFound(); search.value = id; search.setAttribute("aria-busy", "true");
  try {
    const told = await source.user(id);
    if (mine !== state.asked) return;
    Object.assign(state, { user: id, items: told.items, views: told.views.map(view => view && { ...view, ranks: fromSteps(view.steps) }) });
    showProblem(null); showUser();
  } catch (error) {
    if (mine === state.asked) showProblem(error);
  } finally {
    if (mine === state.asked) search.removeAttribute("aria-busy");
  }
}

// --- a user -------------------------------------------------------------------------------------

const NAMES = { test: "test", valid: "validation" };
const BASIS = {
  test: view => `Positives: the ${several(view.ranks.length, "test event")} of this user, which the model has never seen. Negatives: ${count(view.n_neg)} items the user has not been seen with.`,
  valid: view => `Positives: the ${several(view.ranks.length, "validation event")} of this user. The model was not trained on them, but they helped to choose the epoch. Negatives: ${count(view.n_neg)} other items.`,
  history: view => `⚠ Seen in training: flattering. No event of this user was held out, so the positives are the ${several(view.ranks.length, "item")} of the history. Negatives: ${count(view.n_neg)} other items.`,
  nothing: () => "The run knows no event of this user: there is nothing to measure by. The list is what somebody new gets.",
};

function showUser() {
  const view = state.views[state.run], one = state.about.runs[state.run];
  say("who", view ? `User ${state.user}: ${several(view.n_history, "item")} in the history.` : `${one.name} does not know user ${state.user}.`);
  const held = view && (view.on === "test" || view.on === "valid");
  const part = held ? NAMES[view.on] : "";
  $("held-card").hidden = !held;
  document.querySelector(".lists").classList.toggle("two", !held);
  say("basis", view ? BASIS[view.on](view) : "");
  $("basis").classList.toggle("warn", Boolean(view) && view.on === "history");
  const hits = new Set(held ? view.positives : []);
  const found = view ? view.top.filter(item => hits.has(item)).length : 0;
  say("top-note", !view ? "" : !view.top.length ? "No item is left to recommend." : `The best ${view.top.length} of the items not in the history, by score.`
    + (view.on === "test" ? ` ${count(found)} of them ${found === 1 ? "is" : "are"} in the test.` : ""));
  $("top").replaceChildren(...(view ? view.top.map((item, at) => entry(item, at + 1, short(view.scores[at]), hits.has(item) ? `✓ ${part}` : null)) : []));
  say("held-note", held ? `${cut(view.positives.length, view.ranks.length, part + " events")} At the right: other items at or above it.` : "");
  $("held").replaceChildren(...(held ? view.positives.map((item, at) => entry(item, at + 1, count(view.ranks[at]))) : []));
  say("history-note", view ? `${cut(view.history.length, view.n_history, "items")} In no order of time.` : "");
  $("history").replaceChildren(...(view ? view.history.map(item => entry(item)) : []));
  measure();
}

const cut = (shown, all, what) => !all ? `No ${what}.` : shown < all ? `${count(shown)} of ${count(all)} ${what}.` : `All ${count(all)} ${what}.`;

function entry(item, place, score, badge) {
  const [id, title] = state.items[item];
  const name = h("span", {}, title || id, badge ? h("span", { class: "hit" }, badge) : null, title ? h("span", { class: "id" }, id) : null);
  return place ? h("li", {}, h("span", { class: "place" }, `${place}.`), name, h("span", { class: "score" }, score)) : h("li", {}, name);
}

/** Everything that alpha and beta change. */
function measure() {
  const { alpha, beta } = state, view = state.views[state.run];
  const ranks = view ? view.ranks : [], nNeg = view ? view.n_neg : 0;
  const ll = partialAuc(ranks, nNeg, alpha, beta), op = partialAuc(ranks, nNeg, 1, beta), auc = partialAuc(ranks, nNeg, 1, 1);
  say("llpauc-at", `(${short(alpha)}, ${short(beta)})`); say("opauc-at", `(${short(beta)})`);
  for (const [name, told] of [["llpauc", ll], ["opauc", op], ["auc", auc]]) {
    say(name, fixed(told.value, 5));
    $(name).dataset.value = String(told.value); $(name).dataset.share = String(told.share);
  }
  say("llpauc-of", Number.isFinite(ll.most) ? `${percent(ll.share)} of its maximum ${fixed(ll.most, 5)}` : "");
  say("opauc-of", Number.isFinite(op.most) ? `${percent(op.share)} of its maximum ${fixed(op.most, 5)}` : "");
  say("auc-of", Number.isFinite(auc.value) ? "its maximum is 1" : "");
  say("meaning", meaning(view, ll, auc));
  showByRun();
  drawRoc();
}

function meaning(view, ll, auc) {
  if (!state.user) return "Choose a user to see their curve and figures.";
  if (!view || view.on === "nothing") return "There is nothing to measure by.";
  if (!Number.isFinite(ll.value)) return "This user has every item, so there are no negatives to compare with.";
  return `Take the ${count(ll.kPos)} best placed of ${several(view.ranks.length, "positive")} and the ${count(ll.kNeg)} highest ranked of ${several(view.n_neg, "negative")}: `
    + `in ${percent(ll.share)} of these pairs the positive stands above the negative. That is LLPAUC as a share of its maximum, and what the top of the list depends on. `
    + `Over all pairs it is ${percent(auc.value)}, the AUC.`;
}

function showByRun() {
  const runs = state.about ? state.about.runs : [];
  $("by-run").hidden = runs.length < 2;
  if (runs.length < 2) return;
  const { alpha, beta } = state, all = embedded.views.map(of => of.filter(view => view && NAMES[view.on]));
  const mean = at => {
    const values = all[at].map(view => partialAuc(view.ranks || (view.ranks = fromSteps(view.steps)), view.n_neg, alpha, beta).value).filter(Number.isFinite);
    return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : NaN;
  };
  table("by-run-table", ["Run", "LLPAUC", "of its maximum", "OPAUC", "AUC", "mean LLPAUC of all users here"], runs.map((run, at) => {
    const view = state.views[at], figures = (a, b) => view ? partialAuc(view.ranks, view.n_neg, a, b) : { value: NaN, share: NaN };
    const ll = figures(alpha, beta);
    return [keyed(run.name, at), fixed(ll.value, 5), percent(ll.share), fixed(figures(1, beta).value, 5), fixed(figures(1, 1).value, 4), fixed(mean(at), 5)];
  }));
  const kinds = new Set(state.views.map(view => view ? `${view.on} ${view.ranks.length} ${view.n_neg}` : "unknown"));
  say("by-run-note", (kinds.size > 1 ? "The runs do not hold out the same events of this user: compare with care. " : "")
    + `The mean is over the users of this report with held-out events (${all.map(of => count(of.length)).join(", ")}).`);
}

// --- tables -------------------------------------------------------------------------------------

function table(id, head, rows) {
  const cells = (row, tag) => row.map((cell, at) => h(at && tag === "td" ? "td" : "th", tag === "th" ? { scope: "col" } : at ? {} : { scope: "row" }, cell));
  $(id).replaceChildren(h("thead", {}, h("tr", {}, ...cells(head, "th"))),
    h("tbody", {}, ...rows.map(row => row.length > 1 ? h("tr", {}, ...cells(row, "td"))
      : h("tr", { class: "group" }, h("th", { scope: "colgroup", colspan: head.length }, row[0])))));
}

/** A run's name behind a piece of its line. */
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

/** Round steps from low to high, about `wanted` of them. */
function ticks(low, high, wanted) {
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(unit => unit * power).find(unit => unit >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-6; at++) found.push(Number((at * step).toPrecision(8)));
  return found;
}

/** Axes in an emptied SVG; gives back the scales and the plot's own group. */
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

/** The corners of the step curve up to the k- highest negatives and the k+ best positives. */
function corners(ranks, nNeg, kPos, kNeg) {
  const points = [[0, 0]], nPos = ranks.length;
  for (let place = 0; place < kPos; place++) {
    if (ranks[place] >= kNeg) break;
    const last = points[points.length - 1], x = ranks[place] / nNeg;
    if (x > last[0]) points.push([x, last[1]]);
    points.push([x, (place + 1) / nPos]);
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
  const own = state.views[state.run], there = own && own.ranks.length && own.n_neg;
  const kPos = there ? selectedCount(alpha, own.ranks.length) : 0, kNeg = there ? selectedCount(beta, own.n_neg) : 0;
  const most = there ? [kNeg / own.n_neg, kPos / own.ranks.length] : [1, 1];
  for (const [id, x, y] of [["roc", [0, 1], [0, 1]], ["region", [0, most[0]], [0, most[1]]]]) {
    const svg = $(id), { X, Y, box, plot } = frame(svg, { x, y, xLabel: "share of negatives passed (FPR)", yLabel: "share of positives found (TPR)" });
    const path = points => "M" + points.map(([px, py]) => `${X(px).toFixed(2)} ${Y(py).toFixed(2)}`).join("L");
    if (!there) { plot.append(s("text", { x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2, "text-anchor": "middle" }, state.user ? "nothing to draw" : "choose a user")); continue; }
    const clip = `${id}-clip`, hatch = `${id}-hatch`;
    plot.append(s("defs", {}, hatching(hatch, "hatch"), s("clipPath", { id: clip }, s("rect", { x: box.left - 2, y: box.top - 2, width: box.right - box.left + 4, height: box.bottom - box.top + 4 }))));
    if (id === "roc") plot.append(s("path", { class: "diagonal", d: path([[0, 0], [1, 1]]) }));
    const area = path([...corners(own.ranks, own.n_neg, kPos, kNeg), [most[0], 0]]) + "Z";
    plot.append(s("path", { class: "area tint", d: area }), s("path", { class: "area", d: area, fill: `url(#${hatch})` }),
      s("rect", { class: "bound", x: X(0), y: Y(most[1]), width: X(most[0]) - X(0), height: Y(0) - Y(most[1]) }));
    const curves = s("g", { "clip-path": `url(#${clip})` });
    for (const { view, at } of shown) {
      curves.append(s("path", { class: `curve s${at % 6}${at === state.run ? " first" : ""}`, "stroke-dasharray": DASHES[at % 6], d: path(corners(view.ranks, view.n_neg, view.ranks.length, view.n_neg)) }));
    }
    plot.append(curves);
    if (id === "roc") {
      const above = Y(most[1]) - box.top > 22, label = `TPR ≤ ${short(most[1])}, FPR ≤ ${short(most[0])}`;
      const left = X(most[0]) + 7 + 6.6 * label.length < box.right;
      plot.append(s("text", { class: "strong", x: left ? X(most[0]) + 7 : X(most[0]) - 6, y: above ? Y(most[1]) - 6 : Y(0) - 8, "text-anchor": left ? "start" : "end" }, label));
    }
  }
}

function showFigures() {
  const runs = state.about.runs, names = new Set();
  runs.forEach(run => run.epochs.forEach(epoch => Object.keys(epoch.valid).forEach(name => names.add(name))));
  const trained = runs.some(run => run.epochs.length);
  $("figure").replaceChildren(...[...names].map(name => h("option", { value: name }, `validation ${name}`)), ...(trained ? [h("option", { value: "" }, "training loss")] : []));
  for (const id of ["figure-field", "curves-figure", "curve-numbers"]) $(id).hidden = !trained;
  drawTraining();
}

function drawTraining() {
  const runs = state.about.runs, name = $("figure").value, told = name ? `validation ${name}` : "training loss";
  const series = runs.map((run, at) => ({
    at, name: run.name, best: run.epochs.filter(epoch => epoch.best).length ? Math.max(...run.epochs.filter(epoch => epoch.best).map(epoch => epoch.number)) : 0,
    points: run.epochs.map(epoch => [epoch.number, name ? epoch.valid[name] : epoch.loss]).filter(([, value]) => typeof value === "number"),
  })).filter(one => one.points.length);
  if (!series.length) return say("training-note", "There was no training to show: this model is computed in one go, or the run keeps no record of its epochs.");
  const sentence = series.map(one => {
    const [, last] = one.points[one.points.length - 1], at = one.points.find(([number]) => number === one.best);
    return name && at ? `${one.name} was best after epoch ${one.best} of ${one.points.length} with ${fixed(at[1])}` : `${one.name} ended at ${fixed(last)} after ${several(one.points.length, "epoch")}`;
  });
  say("training-note", `${told}: ${sentence.join("; ")}.` + (name ? " Higher is better; a filled marker is the epoch that was kept." : " Lower is better; losses of different kinds cannot be compared."));
  const values = series.flatMap(one => one.points.map(([, value]) => value));
  let low = Math.min(...values), high = Math.max(...values);
  const room = (high - low || Math.abs(high) || 1) * 0.08; low -= room; high += room;
  const last = Math.max(...series.map(one => one.points[one.points.length - 1][0]), 2);
  const { X, Y, plot, box } = frame($("curves"), { x: [1, last], y: [low, high], xLabel: "epoch", yLabel: told, right: 20 });
  for (const { at, points, best } of series) {
    plot.append(s("path", { class: `curve s${at % 6}`, "stroke-dasharray": DASHES[at % 6], d: "M" + points.map(([x, y]) => `${X(x).toFixed(1)} ${Y(y).toFixed(1)}`).join("L") }));
    const every = Math.ceil(points.length / 12);
    points.forEach(([x, y], place) => { if (x !== best && place % every === 0) plot.append(marker(X(x), Y(y), at, false)); });
    points.forEach(([x, y]) => { if (x === best) plot.append(marker(X(x), Y(y), at, true)); });
  }
  const legend = series.length > 1 ? [s("g", {})] : [];
  if (legend.length) series.forEach(({ at, name: run }, row) => {
    const y = (name ? box.bottom - 14 - 18 * (series.length - 1 - row) : box.top + 12 + 18 * row), x = box.right - 8;
    const words = s("text", { x: x - 38, y: y + 4, "text-anchor": "end" }, run.length > 24 ? run.slice(0, 23) + "…" : run);
    legend[0].append(words, s("path", { class: `curve s${at % 6}`, "stroke-dasharray": DASHES[at % 6], d: `M${x - 32} ${y}H${x}` }), marker(x - 16, y, at, false));
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
  say("runs-title", many ? "Runs compared" : "The run"); say("runs-link", many ? "Runs compared" : "The run");
  const line = (label, of) => [label, ...runs.map(run => figure(of(run)))];
  const names = of => [...new Set(runs.flatMap(run => Object.keys(of(run))))];
  const rows = [line("model", run => run.model), line("loss", run => run.loss), line("data", run => run.data), line("users", run => run.users), line("items", run => run.items),
    line("events it has", run => run.events), line("validation events kept", run => run.held_out.valid || 0), line("test events kept", run => run.held_out.test || 0)];
  if (runs.some(run => run.updates)) rows.push(line("updates since", run => run.updates));
  const settings = names(run => run.parameters);
  if (settings.length) rows.push(["Settings"], ...settings.map(name => line(name, run => run.parameters[name])));
  const own = run => run.test[run.model] || {}, measured = names(own);
  if (measured.length) rows.push(["Test, measured after training"], ...measured.map(name => line(name, run => own(run)[name])));
  const popular = run => run.model === "popularity" ? {} : run.test.popularity || {};
  const others = names(popular).filter(name => name !== "users");
  if (others.length) rows.push(["The most popular items on the same test"], ...others.map(name => line(name, run => popular(run)[name])));
  say("runs-note", measured.length ? "Means over the test users. “–”: not set, or not measured." : "Nothing was measured on a test part when this was trained.");
  table("runs-table", ["", ...runs.map((run, at) => many ? keyed(run.name, at) : run.name)], rows);
}

function showTuning() {
  const tuning = state.about.tuning;
  $("tuning").hidden = $("tuning-link").hidden = !tuning;
  if (!tuning) return;
  const { best } = tuning;
  say("tuning-note", `Of ${several(tuning.trials, "trial")}, ${count(tuning.complete)} with alpha and beta came to an end. The best by validation ${tuning.metric} is trial ${best.trial}: ${fixed(best.value)} at alpha ${short(best.alpha)} and beta ${short(best.beta)}.`);
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
  const cell = (edges, value) => { let at = 0; while (at < edges.length - 2 && value >= edges[at + 1]) at++; return at; };
  const star = [cell(tuning.alphas, tuning.best.alpha), cell(tuning.betas, tuning.best.beta)];
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const parts = [s("defs", {}, hatching("map-void", "void"))];
  tuning.values.forEach((line, row) => line.forEach((value, column) => {
    const x = box.left + column * wide, y = box.bottom - (row + 1) * tall, place = { class: "cell", x, y, width: wide, height: tall };
    if (value === null) return parts.push(s("rect", { ...place, fill: "url(#map-void)" }));
    const heat = high > low ? (value - low) / (high - low) : 1, mix = cold.map((from, at) => Math.round(from + heat * (hot[at] - from)));
    const light = (0.299 * mix[0] + 0.587 * mix[1] + 0.114 * mix[2]) > 140, ink = light ? "#101418" : "#ffffff";
    const best = row === star[0] && column === star[1], digits = wide < 40 ? 3 : 4;
    const words = s("text", { x: x + wide / 2, y: y + tall / 2 + 4, "text-anchor": "middle" }, value.toFixed(digits).replace(/^0/, ""));
    words.style.fill = ink;
    if (wide < 36) words.style.fontSize = "10px";
    if (best) { words.style.fontWeight = "700"; words.setAttribute("y", y + tall / 2 + 12); }
    parts.push(s("rect", { ...place, fill: `rgb(${mix})` }, s("title", {}, `alpha ${cellName(tuning.alpha_values, tuning.alphas, row)}, beta ${cellName(tuning.beta_values, tuning.betas, column)}: ${value}`)), words);
    if (best) { const mark = s("text", { x: x + wide / 2, y: y + tall / 2 - 3, "text-anchor": "middle" }, "★"); mark.style.fill = ink; mark.style.fontSize = "16px"; parts.push(mark); }
  }));
  const every = Math.ceil(44 / wide), thin = (at, parts) => at % every === 0 ? parts : null;
  const scale = (values, edges, put) => values ? values.map((value, at) => put(at + 0.5, short(value), at)) : edges.map((edge, at) => put(at, String(Number(edge.toPrecision(2))), at));
  parts.push(...scale(tuning.beta_values, tuning.betas, (at, text, place) => thin(place, s("text", { x: Math.min(box.left + at * wide, box.right - 8), y: box.bottom + 16, "text-anchor": "middle" }, text))).filter(Boolean),
    ...scale(tuning.alpha_values, tuning.alphas, (at, text) => s("text", { x: box.left - 6, y: Math.max(box.bottom - at * tall + 4, 12), "text-anchor": "end" }, text)),
    s("text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, "beta (share of negatives), by its logarithm"),
    s("text", { x: 0, y: 0, "text-anchor": "middle", transform: `translate(12 ${(box.top + box.bottom) / 2}) rotate(-90)` }, "alpha (share of positives)"));
  svg.replaceChildren(...parts);
}

// --- alpha and beta -----------------------------------------------------------------------------

const SLIDES = { alpha: { to: Number, from: value => value }, beta: { to: position => Number((10 ** Number(position)).toPrecision(2)), from: value => Math.log10(value) } };

function setShare(name, value, from) {
  state[name] = value;
  if (from !== "slide") $(`${name}-slide`).value = SLIDES[name].from(value);
  if (from !== "number") $(name).value = String(value);
  $(`${name}-slide`).setAttribute("aria-valuetext", `${name} ${short(value)}`);
  $(name).removeAttribute("aria-invalid");
  if (!document.querySelector("[aria-invalid=true]")) say("share-problem", "");
}

for (const name of ["alpha", "beta"]) {
  $(`${name}-slide`).addEventListener("input", event => { setShare(name, SLIDES[name].to(event.target.value), "slide"); measure(); });
  $(name).addEventListener("input", event => {
    const value = Number(event.target.value);
    if (value > 0 && value <= 1) { setShare(name, value, "number"); return measure(); }
    event.target.setAttribute("aria-invalid", "true");
    say("share-problem", `${name} must be above 0 and at most 1; ${short(state[name])} is still shown.`);
  });
  $(name).addEventListener("blur", () => setShare(name, state[name]));
}

// --- the whole page -----------------------------------------------------------------------------

function showAbout() {
  const runs = state.about.runs, first = runs[0];
  const told = run => `${run.model}${run.loss ? ` trained with ${run.loss}` : ""}`;
  document.title = `${runs.map(run => run.name).join(", ")} – llpauc`;
  say("title", runs.map(run => run.name).join(", "));
  say("about", runs.length === 1
    ? `${told(first)}${first.data ? ` on ${first.data}` : ""}: ${several(first.users, "user")}, ${several(first.items, "item")}, ${several(first.events, "event")}.`
    : `${several(runs.length, "run")}: ${runs.map(told).join("; ")}.`);
  if (embedded) $("about").append(` This report holds ${several(embedded.users.length, "user")} of ${count(first.users)}.`);
  $("run-field").hidden = runs.length < 2;
  $("run").replaceChildren(...runs.map((run, at) => h("option", { value: at }, run.name)));
  showFigures(); showRuns(); showTuning();
}

$("run").addEventListener("change", event => {
  state.run = Number(event.target.value);
  if (state.user) showUser(); else measure();
});
$("figure").addEventListener("change", drawTraining);
$("key-form").addEventListener("submit", event => {
  event.preventDefault();
  state.key = $("key").value; $("key").value = ""; $("key-form").hidden = true;
  begin();
});

async function begin() {
  try { state.about = await source.about(); } catch (error) { say("about", "The run cannot be shown yet."); return showProblem(error); }
  showProblem(null); document.body.classList.remove("locked");
  const first = state.about.runs.find(run => run.alpha && run.beta) || {};
  setShare("alpha", first.alpha || 0.7); setShare("beta", first.beta || 0.1);
  showAbout(); measure();
  const someone = embedded ? embedded.users[Math.floor(embedded.users.length / 2)] : state.about.runs[0].some_users[state.about.runs[0].some_users.length >> 1];
  if (someone !== undefined) choose(someone);
}

let redraw = 0;
function drawAgain() {
  cancelAnimationFrame(redraw);
  redraw = requestAnimationFrame(() => { if (state.about) { drawRoc(); if (!$("curves-figure").hidden) drawTraining(); drawMap(); } });
}
new ResizeObserver(drawAgain).observe(document.querySelector("main"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAgain);
begin();
})();
