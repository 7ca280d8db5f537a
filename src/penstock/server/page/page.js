// The page. No library: what it shows comes over one stream of events, and every name is set as text.
"use strict";

const $ = (id) => document.getElementById(id);
const ROW = { state: 0, rate: 1, rows: 2, bytes: 3, done: 4, total: 5, request: 6, notes: 7, changed: 8, conflicts: 9, error: 10 };
const STATES = ["failed", "copying", "catching_up", "pending", "streaming", "removed"];
const HIGHEST_FIRST = ["rate", "copied"]; // columns that are sorted so at the first click
const NAMES = { catching_up: "catching up", cut_off: "cut off" };
const ENDED = ["suspended", "disabled", "cut_off"]; // states of subscriptions that a person ends

const seen = { summary: null, madeAt: 0, ahead: 0, tables: new Map(), history: {}, subscriptions: [] };
const shown = { state: null, filter: "", sort: "state", up: true };

// -- elements ---------------------------------------------------------------------------------

function h(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((each) => each !== null && each !== undefined && each !== false));
  return made;
}

function svg(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Which button of a place is in focus, and that it is again after the place was drawn anew.
function focusedAct(place) {
  return place.contains(document.activeElement) ? document.activeElement.dataset.act || null : null;
}

function focusAct(place, act) {
  if (act === null || focusedAct(place) === act) return;
  const again = place.querySelector(`[data-act="${CSS.escape(act)}"]`);
  if (again) again.focus();
}

// -- words ------------------------------------------------------------------------------------

const number = new Intl.NumberFormat("en");
const count = (n, noun) => `${number.format(n)} ${noun}${n === 1 ? "" : "s"}`;

function size(bytes) {
  if (bytes === null || bytes === undefined) return "?";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (bytes >= 1000 && at < units.length - 1) { bytes /= 1000; at += 1; }
  return `${at === 0 ? bytes : bytes.toFixed(1)} ${units[at]}`;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "?";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

const rate = (n) => (n >= 100 ? number.format(Math.round(n)) : n.toFixed(n >= 10 ? 0 : 1));

// An LSN as a number: exact, for distances are shown in bytes.
function lsn(text) {
  if (!text) return null;
  const [high, low] = text.split("/");
  return (BigInt(`0x${high}`) << 32n) + BigInt(`0x${low}`);
}

function distance(from, to) {
  const [a, b] = [lsn(from), lsn(to)];
  return a === null || b === null ? null : Number(a > b ? a - b : 0n);
}

// -- the token, and requests ------------------------------------------------------------------

// From the address (#token=…), which is not sent to the server; then from this tab's memory.
let token = sessionStorage.getItem("penstock-token");
if (location.hash.startsWith("#token=")) {
  token = location.hash.slice(7);
  try { token = decodeURIComponent(token); } catch { /* it holds a % that begins nothing: it is meant as it stands */ }
  sessionStorage.setItem("penstock-token", token);
  history.replaceState(null, "", location.pathname);
}

async function request(method, path, body) {
  const headers = { Accept: "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    const error = found.error || {};
    const failure = new Error([`${error.code || answer.status} ${error.what || answer.statusText}`, error.do ? `Do: ${error.do}` : ""].join("\n").trim());
    failure.status = answer.status;
    throw failure;
  }
  return found;
}

let onToken = () => {}; // who waits for one

function setToken(given) {
  token = given || null;
  if (token) sessionStorage.setItem("penstock-token", token);
  else sessionStorage.removeItem("penstock-token");
  onToken();
  reconnect();
}

// Why a token cannot be used; nothing where it can. Every path refuses a wrong one.
async function faultOfToken(given) {
  try {
    const answer = await fetch("/health", { headers: { Authorization: `Bearer ${given}` } });
    return answer.status === 401 ? "The token is wrong." : null;
  } catch { return "penstock does not answer."; }
}

// -- asking before acting ---------------------------------------------------------------------

// One question after the other: a second one must not write over the first, and be answered in its place.
let asking = Promise.resolve();

function ask(question) {
  const answer = asking.then(() => askNow(question));
  asking = answer.catch(() => null);
  return answer;
}

// `check` is given what was entered, before the question closes; what it returns is said, and the question stays.
function askNow({ title, text, yes = "Do it", field = null, secret = false, danger = false, check = null }) {
  const dialog = $("ask");
  setText($("ask-title"), title);
  setText($("ask-text"), text || "");
  setText($("ask-yes"), yes);
  $("ask-yes").className = danger ? "primary danger-yes" : "primary";
  $("ask-label").hidden = field === null;
  $("ask-error").hidden = true;
  const input = $("ask-input");
  input.value = "";
  input.type = secret ? "password" : "text";
  input.required = field !== null;
  setText($("ask-field"), field || "");
  dialog.returnValue = "cancel";
  dialog.showModal();
  (field !== null ? input : danger ? $("ask-no") : $("ask-yes")).focus();
  const submit = async (event) => {
    if (check === null || event.submitter === $("ask-no")) return;
    event.preventDefault();
    const fault = await check(input.value.trim());
    if (!dialog.open) return;
    if (!fault) { dialog.close("yes"); return; }
    setText($("ask-error"), fault);
    $("ask-error").hidden = false;
    input.select();
  };
  $("ask-form").addEventListener("submit", submit);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      $("ask-form").removeEventListener("submit", submit);
      resolve(dialog.returnValue === "yes" ? (field === null ? true : input.value.trim()) : null);
    }, { once: true });
  });
}

let toastTimer = 0;
function toast(text) {
  setText($("toast"), text);
  $("toast").classList.add("on");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => $("toast").classList.remove("on"), 6000);
}

let givingToken = null;

function giveToken() {
  if (givingToken === null) givingToken = askForToken().finally(() => { givingToken = null; });
  return givingToken;
}

async function askForToken() {
  const has = seen.summary ? seen.summary.has_token : true;
  if (!has) {
    await ask({ title: "No token is set", text: "Actions need one. Write token: ${PENSTOCK_TOKEN} into the pipeline file, and start penstock again.", yes: "Close" });
    return false;
  }
  const given = await ask({ title: "The token of the pipeline file", text: "It stays in this tab, and is sent to this server alone.", yes: "Use it", field: "Token", secret: true, check: faultOfToken });
  if (!given) return false;
  setToken(given);
  return true;
}

async function act(question, method, path, body, done) {
  if (!token && !(await giveToken())) return;
  const answer = await ask(question);
  if (!answer) return;
  const used = token;
  try {
    const found = await request(method, path, typeof body === "function" ? body(answer) : body);
    toast(done ? done(found) : (found.done || []).join("\n") || "Done.");
  } catch (failure) {
    if (failure.status === 401 && token === used) setToken(null);
    toast(failure.message);
  }
}

// With several sources a table is listed as source/table.
function split(name) {
  const ids = Object.keys(seen.summary.sources);
  if (ids.length < 2) return { table: name, source: null };
  const at = name.indexOf("/");
  return { source: name.slice(0, at), table: name.slice(at + 1) };
}

const actions = {
  retry: (sink, name) => {
    const { table, source } = split(name);
    return act({ title: `Try ${name} again now?`, text: `What waits for it is delivered to ${sink}, as soon as the cause is fixed. Nothing is lost if it is not.`, yes: "Try again" },
      "POST", "/api/tables/retry", { sink, names: [table], source });
  },
  resync: (sink, name) => {
    const { table, source } = split(name);
    return act({ title: `Copy ${name} again?`, text: "All of its rows are read from the source and replace those at every sink. Other tables go on.", yes: "Copy again" },
      "POST", "/api/tables/resync", { names: [table], source });
  },
  remove: (sink, name) => {
    const { table, source } = split(name);
    return act({ title: `Follow ${name} no more?`, text: "Its rows at the sinks stay as they are. To follow it again means to copy it again.", yes: "Remove", danger: true },
      "POST", "/api/tables/remove", { names: [table], source });
  },
  pause: (sink) => act({ title: `Pause sink ${sink}?`, text: "The batch under way ends. After that changes wait in the log, and the source keeps its WAL, until it is resumed; also after a restart.", yes: "Pause" },
    "POST", `/api/sinks/${encodeURIComponent(sink)}/pause`),
  resume: (sink) => act({ title: `Resume sink ${sink}?`, text: "It goes on where it stopped.", yes: "Resume" },
    "POST", `/api/sinks/${encodeURIComponent(sink)}/resume`),
  "resume-subscription": (sink, name, { subscription: id }) => act({ title: `Deliver to subscription ${id} again?`, text: `It goes on where it was with what ${sink} has kept for it. One that is disabled begins where the sink is; what one that was cut off has lost is not sent.`, yes: "Resume" },
    "POST", `/subscriptions/${encodeURIComponent(id)}/resume?sink=${encodeURIComponent(sink)}`, undefined, () => `${id}: is delivered to again`),
  parked: () => { $("parked").scrollIntoView(); showParked(); },
};
const LABELS = { retry: "Retry now…", resync: "Copy again…", resume: "Resume…", "resume-subscription": "Resume…", parked: "Show them", pause: "Pause…", remove: "Remove…" };

// -- verdict ----------------------------------------------------------------------------------

function copyProgress() {
  let done = 0, total = 0, tables = 0, underWay = 0;
  for (const rows of seen.tables.values()) {
    for (const row of rows.values()) {
      if (row[ROW.state] === "copying" || row[ROW.state] === "pending") {
        tables += 1; done += row[ROW.done]; total += row[ROW.total];
        underWay += row[ROW.state] === "copying" ? 1 : 0;
      }
    }
  }
  return { tables, underWay, share: total ? done / total : 0 };
}

// How old the last status is, by this browser's clock alone.
const age = () => (performance.now() - seen.madeAt) / 1000;

// Sources and sinks that nothing moves from or to yet, or any more, as /ready has it.
const awaited = (sink) => !Object.keys(sink.sources).length || Object.values(sink.sources).some((flow) => !flow.delivered_lsn);

function unconnected(summary) {
  const [captures, delivers] = ["capture", "deliver"].map((half) => summary.halves.includes(half));
  return [
    ...Object.entries(summary.sources).filter(([, each]) => captures && !each.connected).map(([name]) => `source ${name}`),
    ...Object.entries(summary.sinks).filter(([, each]) => delivers && awaited(each)).map(([name]) => `sink ${name}`),
  ];
}

// Level, headline, and what a screen reader says where the headline has figures that move.
function verdict(summary) {
  if (age() > summary.stale_seconds) return ["bad", `What is shown is ${duration(age())} old: the run may hang.`, "What is shown is old: the run may hang."];
  const errors = summary.problems.filter((each) => each.level === "error");
  const stopped = errors.filter((each) => each.part === "table").length;
  const others = errors.filter((each) => each.part !== "table");
  const sinks = Object.values(summary.sinks);
  const lag = Math.max(0, ...sinks.map((sink) => sink.lag_seconds || 0));
  const paused = Object.entries(summary.sinks).filter(([, sink]) => sink.paused_since).map(([name]) => name);
  const copy = copyProgress();
  if (others.length) {
    const parts = [...new Set(others.map((each) => `${each.part} ${each.name}`))];
    return ["bad", `${parts.slice(0, 3).join(", ")} ${parts.length === 1 ? "needs" : "need"} you.`];
  }
  if (stopped) return ["bad", `${count(stopped, "table")} ${stopped === 1 ? "stands" : "stand"} still; the others go on.`];
  if (paused.length) return ["warn", `Paused: ${paused.join(", ")}. Changes wait in the log.`];
  const waitedFor = unconnected(summary);
  if (waitedFor.length && !copy.underWay) return ["warn", `Not connected: ${waitedFor.slice(0, 3).join(", ")}${waitedFor.length > 3 ? ` and ${waitedFor.length - 3} more` : ""}.`];
  if (copy.tables) return ["busy", `Copying ${count(copy.tables, "table")}, ${Math.round(copy.share * 100)}% there.`, "Tables are being copied."];
  if (summary.phase === "stopped") return ["warn", "Only one half of the pipeline runs."];
  if (lag > 5) return ["warn", `Behind by ${duration(lag)}.`, "Behind."];
  if (sinks.some((sink) => sink.lag_seconds === null && sink.lag_bytes)) return ["warn", "Behind; since when is not known."];
  if (sinks.some((sink) => sink.parked)) return ["warn", "Delivered, but for changes that are parked."];
  const receivers = sinks.flatMap((sink) => Object.entries(sink.subscriptions)).filter(([state]) => state !== "active" && state !== "pending");
  const behind = receivers.reduce((sum, [, n]) => sum + n, 0);
  if (behind) return ["warn", `Delivered, but for ${count(behind, "receiver")} of webhooks.`];
  if (summary.phase === "catching_up") return ["busy", "Catching up."];
  return ["ok", "Everything is delivered."];
}

function setHeadline(level, text, spoken = text) {
  $("verdict").className = `verdict ${level}`;
  setText($("headline"), text);
  setText($("spoken"), spoken);
}

// How a sink stands, in words.
function behind(sink) {
  if (sink.lag_seconds !== null) return `${duration(sink.lag_seconds)} behind`;
  return awaited(sink) ? "not connected" : sink.lag_bytes ? "behind, since when is not known" : "where it is, is not known";
}

function drawVerdict(summary) {
  const [level, text, spoken = text] = verdict(summary);
  setHeadline(level, text, spoken);
  const sinks = Object.entries(summary.sinks);
  const said = sinks.map(([name, sink]) => `${sinks.length > 1 ? `${name}: ` : ""}${behind(sink)}, ${count(sink.changes_delivered, "change")} delivered`);
  setText($("subline"), said.slice(0, 4).join(" · "));
  document.title = `${level === "ok" ? "✓" : level === "bad" ? "✗" : "…"} ${summary.name} · penstock`;
}

function drawProblems(summary) {
  const list = $("problem-list");
  $("problems").hidden = summary.problems.length === 0;
  const key = JSON.stringify([summary.problems, summary.is_trusted]);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  const focused = focusedAct(list);
  list.replaceChildren(...summary.problems.map((each) => h("li", { class: `problem ${each.level}` },
    h("p", { class: "title" }, each.code && h("span", { class: "code" }, `${each.code} `), `${each.part} ${each.name}`, each.part === "table" && each.sink ? ` at ${each.sink}` : ""),
    h("p", { class: "what" }, each.what),
    each.do && h("p", { class: "do" }, h("b", {}, "Do: "), each.do),
    each.actions.length > 0 && h("div", { class: "buttons" }, ...each.actions.map((action) =>
      h("button", { type: "button", class: "small", "data-act": `${action} ${each.sink} ${each.subscription || each.name}`, "aria-label": each.subscription && `Resume subscription ${each.subscription}`, onclick: () => actions[action](each.sink, each.name, each) }, LABELS[action]))),
  )));
  focusAct(list, focused);
  const more = summary.problem_count - summary.problems.length;
  $("problem-more").hidden = more <= 0;
  setText($("problem-more"), `and ${number.format(more)} more: filter the tables by “failed”.`);
}

// -- the road ---------------------------------------------------------------------------------

function facts(...pairs) {
  return h("dl", {}, ...pairs.filter(([, value]) => value !== null).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

const position = (text) => h("span", { class: "lsn" }, text || "?");

function drawRoad(summary) {
  const key = JSON.stringify([summary.sources, summary.sinks]);
  const road = $("road");
  if (road.dataset.key === key) return;
  const focused = focusedAct(road);
  road.dataset.key = key;
  const sources = Object.entries(summary.sources);
  const sinks = Object.entries(summary.sinks);
  const isUp = sources.some(([, each]) => each.connected && !each.error);
  const delivers = sinks.some(([, each]) => !each.error && !each.paused_since);
  road.replaceChildren(
    h("div", { class: "column" }, ...sources.slice(0, 12).map(([name, each]) => h("div", { class: "stop" },
      h("div", { class: "kind" }, "source"),
      h("div", { class: "title" }, h("span", { class: `dot ${each.error ? "bad" : each.connected ? "ok" : "warn"}` }), name),
      h("div", { class: "big" }, each.error ? "error" : each.connected ? "followed" : "not connected"),
      facts(["WAL now", position(each.current_lsn)], ["received", position(each.received_lsn)],
        ["server keeps", `${size(each.retained_bytes)}${each.wal_status ? `, ${each.wal_status}` : ""}`], ["slot", each.slot || "none"]),
    )), sources.length > 12 && h("p", { class: "muted" }, `and ${sources.length - 12} more sources`)),
    h("div", { class: `pipe ${isUp ? "flows" : "broken"}`, "aria-hidden": "true" }),
    h("div", { class: "column" }, h("div", { class: "stop" },
      h("div", { class: "kind" }, "log"),
      h("div", { class: "title" }, LOGS[summary.log] || `durable in ${summary.log}`),
      h("div", { class: "big" }, size(sources.reduce((sum, [, each]) => sum + each.log_bytes, 0))),
      sources.length === 1
        ? facts(["durable", position(sources[0][1].durable_lsn)], ["acknowledged", position(sources[0][1].acknowledged_lsn)],
          ["transactions", number.format(sources[0][1].transactions)])
        : facts(["sources", String(sources.length)], ["transactions", number.format(sources.reduce((sum, [, each]) => sum + each.transactions, 0))]),
    )),
    h("div", { class: `pipe ${delivers ? "flows" : "broken"}`, "aria-hidden": "true" }),
    h("div", { class: "column" }, ...sinks.slice(0, 12).map(([name, each]) => h("div", { class: "stop" },
      h("div", { class: "kind" }, "sink",
        h("button", { type: "button", class: "quiet small", "data-act": `pause ${name}`, "aria-label": `${each.paused_since ? "Resume" : "Pause"} sink ${name}`, onclick: () => actions[each.paused_since ? "resume" : "pause"](name) }, each.paused_since ? LABELS.resume : LABELS.pause)),
      h("div", { class: "title" }, h("span", { class: `dot ${each.error || each.states.failed ? "bad" : each.paused_since || each.lag_seconds > 5 || awaited(each) ? "warn" : "ok"}` }), name),
      h("div", { class: "big" }, each.error ? "error" : each.paused_since ? "paused" : behind(each)),
      facts(["behind", size(each.lag_bytes)], ["delivered", each.delivered_lsn ? position(each.delivered_lsn) : null],
        ["changes", number.format(each.changes_delivered)], ["parked", each.parked ? number.format(each.parked) : null], ["receivers", receivers(each.subscriptions)]),
    )), sinks.length > 12 && h("p", { class: "muted" }, `and ${sinks.length - 12} more sinks`)),
  );
  focusAct(road, focused);
}

function receivers(states) {
  const all = Object.values(states).reduce((sum, n) => sum + n, 0);
  if (!all) return null;
  const active = states.active || 0;
  return active === all ? number.format(all) : `${number.format(all)}, ${number.format(active)} active`;
}

// Where the log is; another kind says its name.
const LOGS = { files: "durable on disk", kafka: "durable in Kafka", nats: "durable in NATS" };

// -- charts -----------------------------------------------------------------------------------

const HOUR = 3600;
// By the server's clock, which is that of the points; this browser's may be another.
const serverNow = () => Date.now() / 1000 - seen.ahead;
const MOST_LINES = 6; // of a chart: there are no more colours that one can tell apart
const HEIGHT = 170, LEFT = 44, RIGHT = 8, TOP = 10, BOTTOM = 22;

function ceiling(most) {
  if (most <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= most);
}

function short(value) {
  const round = (n) => String(Math.round(n * 10) / 10);
  if (value >= 1e6) return `${round(value / 1e6)}M`;
  if (value >= 1e3) return `${round(value / 1e3)}k`;
  return round(value);
}

function drawChart(place, what, unit) {
  const box = $(place);
  const WIDTH = Math.max(240, box.clientWidth);
  const sinks = Object.entries(seen.history).slice(0, MOST_LINES);
  const left = Object.keys(seen.history).length - sinks.length;
  const now = serverNow();
  const top = ceiling(Math.max(0, ...sinks.flatMap(([, each]) => each[what].map((value) => value || 0))));
  // A run that is young fills the chart as well.
  const first = Math.min(now, ...sinks.map(([, each]) => each.at[0] || now));
  const span = Math.min(HOUR, Math.max(300, now - first));
  const x = (at) => LEFT + (WIDTH - LEFT - RIGHT) * Math.max(0, 1 - (now - at) / span);
  const y = (value) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * Math.min(1, value / top);
  const last = sinks.map(([name, each]) => `${name} ${short(each[what].at(-1) || 0)} ${unit}`).join(", ");
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Last: ${last || "nothing yet"}; scale to ${short(top)} ${unit}` });
  for (const share of [0, 0.5, 1]) {
    drawing.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(top * share), y2: y(top * share) }),
      svg("text", { x: LEFT - 6, y: y(top * share) + 4, "text-anchor": "end" }, short(top * share)));
  }
  const most = WIDTH < 380 ? 3 : 6;
  const step = [1, 2, 5, 10, 15, 20, 30].find((minutes) => span / 60 / minutes <= most) || 30;
  for (let minutes = 0; minutes * 60 <= span; minutes += step) {
    const at = x(now - minutes * 60);
    drawing.append(svg("text", { x: at, y: HEIGHT - 6, "text-anchor": minutes === 0 ? "end" : at < LEFT + 20 ? "start" : "middle" }, minutes ? `−${minutes} min` : "now"));
  }
  sinks.forEach(([, each], at) => {
    const points = each.at.map((time, place) => [time, each[what][place]]).filter(([time, value]) => value !== null && now - time <= HOUR);
    if (!points.length) return;
    const line = points.map(([time, value]) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`);
    if (sinks.length === 1) {
      drawing.append(svg("polygon", { class: `area k${at}`, points: [`${x(points[0][0])},${y(0)}`, ...line, `${x(points.at(-1)[0])},${y(0)}`].join(" ") }));
    }
    drawing.append(svg("polyline", { class: `line k${at}`, points: line.join(" ") }));
  });
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, x1: 0, x2: 0, visibility: "hidden" });
  drawing.append(cursor);
  const legend = h("div", { class: "legend" });
  const tell = (time) => legend.replaceChildren(...sinks.map(([name, each], at) => {
    let best = each.at.length - 1;
    if (time !== null) best = each.at.reduce((found, value, place) => (Math.abs(value - time) < Math.abs(each.at[found] - time) ? place : found), 0);
    const value = best >= 0 ? each[what][best] : null;
    return h("span", { class: `k${at}` }, `${name} ${value === null || value === undefined ? "?" : `${short(value)} ${unit}`}${time === null || best < 0 ? "" : ` at ${new Date(each.at[best] * 1000).toLocaleTimeString()}`}`);
  }));
  drawing.addEventListener("pointermove", (event) => {
    const edge = drawing.getBoundingClientRect();
    const at = ((event.clientX - edge.left) / edge.width) * WIDTH;
    cursor.setAttribute("x1", at); cursor.setAttribute("x2", at); cursor.setAttribute("visibility", "visible");
    tell(now - span * (1 - (at - LEFT) / (WIDTH - LEFT - RIGHT)));
  });
  drawing.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); tell(null); });
  tell(null);
  box.replaceChildren(...[drawing, legend, left > 0 && h("p", { class: "muted more" }, `and ${left} more`)].filter(Boolean));
}

function addHistory(found) {
  const oldest = serverNow() - HOUR;
  for (const [name, more] of Object.entries(found)) {
    const have = seen.history[name] || { at: [], lag_seconds: [], lag_bytes: [], changes_per_second: [] };
    const from = have.at.findIndex((at) => at > oldest);
    for (const column of Object.keys(have)) have[column] = [...have[column].slice(from < 0 ? have.at.length : from), ...more[column]];
    seen.history[name] = have;
  }
  drawCharts();
}

function drawCharts() {
  if (!$("lag-chart").matches(":hover")) drawChart("lag-chart", "lag_seconds", "s");
  if (!$("rate-chart").matches(":hover")) drawChart("rate-chart", "changes_per_second", "/s");
}

// -- tables -----------------------------------------------------------------------------------

const drawn = new Map(); // key -> {tr, row}

function copied(row) {
  if (!row[ROW.total]) return [];
  const said = `${count(row[ROW.rows], "row")}${row[ROW.rows] ? `, ${size(row[ROW.bytes])}` : ""}`;
  if (row[ROW.state] !== "copying") return [said];
  const share = row[ROW.done] / row[ROW.total];
  const bar = h("i");
  bar.style.width = `${Math.round(share * 100)}%`;
  return [`${said} · ${Math.round(share * 100)}%`, h("div", { class: "progress", role: "progressbar", "aria-valuenow": Math.round(share * 100), "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": "copied" }, bar)];
}

function makeRow(sink, name, row, manySinks) {
  const conflicts = Object.entries(row[ROW.conflicts] || {}).map(([kind, n]) => `${kind.replace("_", " ")} ${number.format(n)}`).join(", ");
  const state = row[ROW.state];
  return h("tr", {},
    h("td", { class: "name" }, name, manySinks && h("span", { class: "sink" }, `at ${sink}`),
      row[ROW.error] && h("span", { class: "error" }, row[ROW.error].split("\n")[0]), row[ROW.notes] && h("span", { class: "note" }, row[ROW.notes]), conflicts && h("span", { class: "note" }, conflicts)),
    h("td", { class: "state" }, h("span", { class: `pill ${STATES.includes(state) ? state : ""}` }, NAMES[state] || state), row[ROW.request] && h("span", { class: "note" }, `${row[ROW.request]} asked for`)),
    h("td", { class: "num" }, row[ROW.rate] ? rate(row[ROW.rate]) : ""),
    h("td", { class: "wide" }, ...copied(row)),
    h("td", { class: "actions" }, ...(state === "removed" ? [] : [
      state === "failed" && h("button", { type: "button", class: "small", "data-act": `retry ${sink} ${name}`, "aria-label": `Retry ${name} now`, onclick: () => actions.retry(sink, name) }, LABELS.retry),
      h("button", { type: "button", class: "small quiet", "data-act": `resync ${sink} ${name}`, "aria-label": `Copy ${name} again`, onclick: () => actions.resync(sink, name) }, "Resync…"),
      h("button", { type: "button", class: "small quiet", "data-act": `remove ${sink} ${name}`, "aria-label": `Remove ${name}`, onclick: () => actions.remove(sink, name) }, LABELS.remove),
    ].filter(Boolean))));
}

function listed() {
  const wanted = shown.filter.toLowerCase();
  const found = [];
  for (const [sink, rows] of seen.tables) {
    for (const [name, row] of rows) {
      if (shown.state !== null && row[ROW.state] !== shown.state) continue;
      if (wanted && !name.toLowerCase().includes(wanted)) continue;
      found.push([sink, name, row]);
    }
  }
  const by = {
    name: (a, b) => (a[1] < b[1] ? -1 : a[1] > b[1] ? 1 : 0),
    state: (a, b) => STATES.indexOf(a[2][ROW.state]) - STATES.indexOf(b[2][ROW.state]),
    rate: (a, b) => b[2][ROW.rate] - a[2][ROW.rate],
    copied: (a, b) => b[2][ROW.rows] - a[2][ROW.rows],
  };
  const sign = shown.up ? 1 : -1;
  return found.sort((a, b) => sign * by[shown.sort](a, b) || by.name(a, b));
}

function drawTables() {
  const body = $("rows");
  const focused = focusedAct(body);
  const manySinks = seen.tables.size > 1;
  const wanted = listed();
  let at = body.firstElementChild;
  const keep = new Set();
  for (const [sink, name, row] of wanted) {
    const key = JSON.stringify([sink, name]);
    keep.add(key);
    let known = drawn.get(key);
    if (!known || known.row !== row) {
      const made = makeRow(sink, name, row, manySinks);
      if (known) { if (known.tr === at) at = at.nextElementSibling; known.tr.remove(); }
      known = { tr: made, row };
      drawn.set(key, known);
    }
    if (known.tr === at) at = at.nextElementSibling;
    else body.insertBefore(known.tr, at);
  }
  focusAct(body, focused);
  for (const [key, known] of drawn) if (!keep.has(key)) { known.tr.remove(); drawn.delete(key); }
  let total = 0;
  const states = {};
  for (const rows of seen.tables.values()) for (const row of rows.values()) { total += 1; states[row[ROW.state]] = (states[row[ROW.state]] || 0) + 1; }
  setText($("table-count"), wanted.length === total ? number.format(total) : `${number.format(wanted.length)} of ${number.format(total)}`);
  $("no-rows").hidden = wanted.length > 0;
  drawChips(states, total);
}

function drawChips(states, total) {
  const key = JSON.stringify([states, shown.state]);
  const chips = $("chips");
  if (chips.dataset.key === key) return;
  const focused = chips.contains(document.activeElement) ? document.activeElement.dataset.state : null;
  chips.dataset.key = key;
  const chip = (state, label, n) => h("button", { type: "button", "data-state": state || "all", "aria-pressed": String(shown.state === state), onclick: () => { shown.state = state; drawTables(); } }, `${label} ${number.format(n)}`);
  chips.replaceChildren(chip(null, "all", total), ...STATES.filter((state) => states[state] || shown.state === state).map((state) => chip(state, NAMES[state] || state, states[state] || 0)));
  if (focused) { const again = chips.querySelector(`[data-state="${CSS.escape(focused)}"]`); if (again) again.focus(); }
}

// -- subscriptions ----------------------------------------------------------------------------

function drawSubscriptions(summary) {
  const found = seen.subscriptions;
  $("subscriptions").hidden = summary.subscription_count === 0;
  setText($("subscription-count"), number.format(summary.subscription_count));
  const more = summary.subscription_count - found.length;
  $("subscription-more").hidden = more <= 0;
  setText($("subscription-more"), `and ${number.format(more)} more, of which there is less to say: penstock webhooks PIPELINE.yml list`);
  const body = $("subscription-rows");
  const key = JSON.stringify(found);
  if (body.dataset.key === key) return;
  body.dataset.key = key;
  const focused = focusedAct(body);
  const manySinks = Object.keys(summary.sinks).length > 1;
  body.replaceChildren(...found.map((each) => h("tr", {},
    h("td", { class: "name" }, each.name, manySinks && h("span", { class: "sink" }, `at ${each.sink}`),
      each.error && h("span", { class: "error" }, each.error.split("\n")[0]),
      each.lost_to_lsn && h("span", { class: "note" }, `lost up to ${each.lost_to_lsn}`),
      each.parked > 0 && h("span", { class: "note" }, `${number.format(each.parked)} parked`)),
    h("td", { class: "state" }, h("span", { class: `pill ${each.state}` }, NAMES[each.state] || each.state)),
    h("td", { class: "wide", "data-label": "Behind" }, each.state === "disabled" ? "nothing is kept" : each.lag_bytes === null ? "?" : each.lag_bytes === 0 ? "nothing" : size(each.lag_bytes)),
    h("td", { class: "wide", "data-label": "Delivered" }, number.format(each.delivered)),
    h("td", { class: "actions" }, ENDED.includes(each.state) && h("button", { type: "button", class: "small", "data-act": `resume ${each.sink} ${each.name}`, "aria-label": `Resume subscription ${each.id}`, onclick: () => actions["resume-subscription"](each.sink, each.name, { subscription: each.id }) }, LABELS.resume)))));
  focusAct(body, focused);
}

// -- parked changes, schema versions ----------------------------------------------------------

async function showParked() {
  if (!token && !(await giveToken())) return;
  let found;
  try { found = await request("GET", "/api/parked?limit=200"); } catch (failure) { toast(failure.message); return; }
  const list = $("parked-list");
  list.replaceChildren(h("table", {}, h("thead", {}, h("tr", {}, ...["Table", "Change", "Key", "Since", "Why", ""].map((each) => h("th", {}, each)))),
    h("tbody", {}, ...found.parked.map((each) => h("tr", {},
      h("td", { class: "name" }, each.table, h("span", { class: "sink" }, `at ${each.sink}`)), h("td", { class: "state" }, each.op), h("td", { class: "wide", "data-label": "Key" }, each.key === null ? "" : JSON.stringify(each.key)),
      h("td", { class: "wide muted", "data-label": "Since" }, each.parked_at), h("td", { class: "wide", "data-label": "Why" }, each.reason || "behind an earlier change of its key", each.request && h("span", { class: "muted" }, ` (${each.request} asked for)`)),
      h("td", { class: "actions" },
        h("button", { type: "button", class: "small", onclick: () => changeParked("retry", each) }, "Retry…"),
        h("button", { type: "button", class: "small quiet danger", onclick: () => changeParked("drop", each) }, "Drop…")))))));
  if (found.count > found.parked.length) list.append(h("p", { class: "muted empty" }, `and ${number.format(found.count - found.parked.length)} more`));
}

async function changeParked(action, one) {
  const which = one ? `this change of ${one.table}` : "all parked changes";
  const body = one ? { sink: one.sink, source: one.source, ids: [one.id] } : {};
  await act(action === "retry"
    ? { title: `Retry ${which}?`, text: "What is refused again stays parked.", yes: "Retry" }
    : { title: `Drop ${which}?`, text: "They are not delivered, ever. This cannot be undone.", yes: "Drop", danger: true },
  "POST", `/api/parked/${action}`, body, (found) => `${count(found.count, "change")}: ${action === "retry" ? "tried again within seconds" : "dropped"}`);
  if ($("parked-list").childElementCount) setTimeout(showParked, 1500);
}

const schema = { isWanted: false, loadedAs: null };

// Asks the source, so only for who has come to see it; again when the token is given or forgotten.
function loadSchemaIfDue() {
  if (!schema.isWanted || !seen.summary || schema.loadedAs === seen.summary.is_trusted) return;
  schema.loadedAs = seen.summary.is_trusted;
  loadSchema();
}

async function loadSchema() {
  const list = $("schema-list");
  let found;
  try { found = await request("GET", "/api/schema"); } catch (failure) { list.replaceChildren(h("li", { class: "muted" }, failure.message)); return; }
  const many = Object.keys(seen.summary ? seen.summary.sources : {}).length > 1;
  // Each source, and each schema of it, counts for itself: what they have in common is the time.
  found.sort((a, b) => Date.parse(b.created_at) - Date.parse(a.created_at) || b.version - a.version);
  list.replaceChildren(...found.slice(0, 100).map((each) => {
    const changes = h("div", { class: "changes" });
    const open = h("button", { type: "button", class: "small quiet", onclick: async () => {
      try {
        const said = await request("GET", `/api/schema/${encodeURIComponent(each.schema_name)}/${each.version}/changes?source=${encodeURIComponent(each.source)}`);
        setText(changes, said.length ? said.join("\n") : "the first version");
      } catch (failure) { setText(changes, failure.message); }
      open.remove();
    } }, "What changed");
    return h("li", { class: each.acked ? "delivered" : "" }, h("b", {}, `${many ? `${each.source}: ` : ""}${each.schema_name} version ${each.version}`), " ",
      h("span", { class: "muted" }, new Date(each.created_at).toLocaleString(), each.lsn ? ` · ${each.lsn}` : "", each.acked ? " · delivered" : " · on its way"), " ", open, changes);
  }));
  if (!found.length) list.replaceChildren(h("li", { class: "muted" }, "No version yet. They are written where triggers track changes of tables (schema: tracking)."));
}

// -- live -------------------------------------------------------------------------------------

function take(view) {
  seen.summary = view;
  seen.madeAt = performance.now() - view.age * 1000;
  seen.ahead = Date.now() / 1000 - view.at - view.age;
  if (view.is_whole) { seen.tables.clear(); seen.history = {}; }
  for (const [sink, rows] of Object.entries(view.tables)) {
    if (!seen.tables.has(sink)) seen.tables.set(sink, new Map());
    const have = seen.tables.get(sink);
    for (const [name, row] of Object.entries(rows)) if (row === null) have.delete(name); else have.set(name, row);
  }
  setText($("name"), view.name);
  const parked = Object.values(view.sinks).reduce((sum, sink) => sum + sink.parked, 0);
  $("parked").hidden = parked === 0 && !$("parked-list").childElementCount;
  setText($("parked-count"), number.format(parked));
  setText($("token-button"), view.is_trusted ? "Forget token" : "Give token");
  setText($("foot"), `penstock, ${view.halves.join(" and ")}`);
  drawVerdict(view);
  drawProblems(view);
  drawRoad(view);
  drawTables();
  if (view.subscriptions) seen.subscriptions = view.subscriptions;
  drawSubscriptions(view);
  if (view.history) addHistory(view.history);
  loadSchemaIfDue();
}

let stream = null;

function reconnect() { if (stream) stream.abort(); }

function setLive(kind, text) { $("live").className = `live ${kind}`; setText($("live"), text); }

async function listen() {
  let wait = 500;
  for (;;) {
    if (document.hidden) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
    stream = new AbortController();
    const used = token;
    let refused = null; // what the server says instead of how the pipeline stands
    try {
      const headers = used ? { Authorization: `Bearer ${used}` } : {};
      const answer = await fetch("/api/events", { headers, signal: stream.signal });
      if (answer.status === 401) {
        setLive("off", used !== null ? "the token is wrong" : "needs the token");
        setHeadline("warn", "This server needs the token of the pipeline file.");
        if (token === used) {
          token = null;
          sessionStorage.removeItem("penstock-token");
          // Who does not want to give it now has the button.
          const given = new Promise((resolve) => { onToken = resolve; });
          if (!(await giveToken())) await given;
        }
        continue;
      }
      if (!answer.ok) {
        const { error } = await answer.json().catch(() => ({}));
        refused = error ? [error.what, error.do] : [`It is answered ${answer.status} ${answer.statusText}`.trim(), "see the proxy before penstock, if there is one"];
        throw new Error(refused[0]);
      }
      setLive("on", "live");
      wait = 500;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        let end;
        while ((end = text.indexOf("\n\n")) >= 0) {
          const data = text.slice(0, end).split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("");
          text = text.slice(end + 2);
          if (data) take(JSON.parse(data));
        }
      }
    } catch (failure) {
      if (failure.name === "AbortError") continue;
    }
    setLive("off", refused ? "refused, trying again" : "not reachable, trying again");
    setHeadline("bad", refused ? `${refused[0]}.` : "penstock does not answer: it was stopped, or cannot be reached.");
    setText($("subline"), refused && refused[1] ? `Do: ${refused[1]}` : seen.summary ? "What is shown below is how it was." : "");
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(wait * 2, 8000);
  }
}

// -- set up -----------------------------------------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");
function setTheme() {
  const chosen = localStorage.getItem("penstock-theme");
  document.documentElement.dataset.theme = chosen || (dark.matches ? "dark" : "light");
}
setTheme();
dark.addEventListener("change", setTheme);

function setUp() {
  $("theme").addEventListener("click", () => {
    localStorage.setItem("penstock-theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    setTheme();
  });
  $("token-button").addEventListener("click", () => (seen.summary && seen.summary.is_trusted ? setToken(null) : giveToken()));
  $("filter").addEventListener("input", (event) => { shown.filter = event.target.value; drawTables(); });
  for (const button of document.querySelectorAll("[data-sort]")) {
    button.addEventListener("click", () => {
      shown.up = shown.sort === button.dataset.sort ? !shown.up : true;
      shown.sort = button.dataset.sort;
      for (const head of document.querySelectorAll("th[aria-sort]")) head.removeAttribute("aria-sort");
      button.closest("th").setAttribute("aria-sort", shown.up === HIGHEST_FIRST.includes(shown.sort) ? "descending" : "ascending");
      drawTables();
    });
  }
  $("add-table").addEventListener("click", () => act({ title: "Follow another table", text: "It is copied first, then followed, whatever the pipeline file says.", field: "schema.table", yes: "Add" },
    "POST", "/api/tables/add", (name) => ({ names: [name] })));
  $("parked-show").addEventListener("click", showParked);
  $("parked-retry").addEventListener("click", () => changeParked("retry"));
  $("parked-drop").addEventListener("click", () => changeParked("drop"));
  $("schema-load").addEventListener("click", loadSchema);
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName) && !$("ask").open) { event.preventDefault(); $("filter").focus(); }
    if (event.key === "Escape" && document.activeElement === $("filter")) { $("filter").value = ""; shown.filter = ""; drawTables(); }
  });
  const watch = new IntersectionObserver((seenNow) => {
    if (!seenNow.some((each) => each.isIntersecting)) return;
    watch.disconnect();
    schema.isWanted = true;
    loadSchemaIfDue();
  });
  watch.observe($("schema-list"));
  // A tab that nobody looks at asks for nothing.
  document.addEventListener("visibilitychange", () => { if (document.hidden) reconnect(); });
  setInterval(() => { if (seen.summary && stream && !document.hidden && $("live").classList.contains("on")) drawVerdict(seen.summary); }, 2000);
  addEventListener("resize", drawCharts);
  drawCharts();
  listen();
}

async function describeApi() {
  const place = $("api");
  let found;
  try { found = await request("GET", "/openapi.json"); } catch (failure) { setText(place, failure.message); return; }
  place.replaceChildren(...Object.entries(found.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, each]) => {
    const schema = each.requestBody && each.requestBody.content["application/json"].schema.$ref;
    const body = schema && found.components.schemas[schema.split("/").at(-1)];
    const parameters = (each.parameters || []).map((one) => one.name).join(", ");
    return h("article", {}, h("div", {}, h("span", { class: "method" }, method.toUpperCase()), h("code", {}, path)),
      h("p", {}, each.description || each.summary || ""), parameters && h("p", { class: "muted" }, `Parameters: ${parameters}`),
      body && h("pre", {}, JSON.stringify(body.properties, null, 2)));
  })));
}

// A link does not send the token: what needs it is fetched, and shown from memory.
for (const link of document.querySelectorAll("a[data-api]")) {
  link.addEventListener("click", async (event) => {
    if (!token) return;
    event.preventDefault();
    const answer = await fetch(link.getAttribute("href"), { headers: { Authorization: `Bearer ${token}` } });
    location.assign(URL.createObjectURL(new Blob([await answer.text()], { type: "text/plain; charset=utf-8" })));
  });
}

if (document.getElementById("api")) describeApi(); else setUp();
