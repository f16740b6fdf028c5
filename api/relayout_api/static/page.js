// The page: a model, a backend and options in; progress; the graph, the tables and the downloads out.
import {GraphView} from "./canvas.js";
import {detailsOf, kindText, modelOf, partText, reasonsOf} from "./details.js";
import {fieldsOf, formOf} from "./forms.js";
import {CHANGES, pictureOf, search} from "./picture.js";
import * as service from "./service.js";
import {svgOf} from "./svg.js";
import {tableOf} from "./tables.js";
import {at, bytes, cost, count, layoutText, make, say} from "./text.js";

const STAGES = [["queued", "wait for a worker"], ["read", "read the model"], ["requirements", "collect the requirements"],
  ["solve", "find the cheapest layouts"], ["rewrite", "rewrite the graph"], ["check", "verify the result"], ["write", "write the legal model"]];
// Those of the other kinds of jobs, to which a link may lead.
const STAGES_OF = {explain: ["queued", "read", "requirements", "solve", "rewrite"], verify: ["queued", "read", "check"]};
const MODES = [["changes", "Changes"], ["side", "Side by side"], ["before", "Before"], ["after", "After"]];
const OWN_TABLE = "(your own table)";

// The model in the form, as service.createJob takes it; the running request or job; the shown result: {source, legal, report,
// job, model, request}; what to do again after it was cancelled.
let model = null;
let running = null;
let result = null;
let again = null;
let views = [];
let mode = "changes";
let found = [];
let urls = [];
let optionsForm = null;
// The options that an explain job takes, of those of a legalize job.
let explainOptions = [];
let mostBytes = Infinity;
let backendForm = {elements: [], values: () => ({})};
let backends = [];
let example = null;

// ---- The key.

// Ask for a key, in a panel above the form. Without the list of backends there is no form yet.
function askForKey(problem) {
  at("key-note").textContent = service.hasKey() ? `The server refused the key: ${problem.detail}.`
    : "All steps need an API key. The operator of this server can give you one.";
  at("key-note").classList.toggle("problem", service.hasKey());
  at("key-form").hidden = false;
  at("form").hidden = optionsForm === null;
  at("key").focus();
  at("key").select();
}

async function useKey() {
  const text = at("key").value.trim();
  if (!/^[!-~]+$/.test(text)) {
    // The browser would send no request with it.
    at("key-note").textContent = "This is no key: a key has letters, digits and signs of ASCII, without spaces.";
    at("key-note").classList.add("problem");
    at("key").select();
    return;
  }
  service.useKey(text);
  at("key-form").hidden = true;
  at("problem").hidden = true;
  await start();
}

// ---- The form.

async function fillForm() {
  const [{backends: listed}, {max_body_bytes: most}, document_] = await Promise.all(["v1/backends", "v1/limits", "openapi.json"].map(path => service.getJson(path)));
  backends = listed;
  mostBytes = most;
  at("backend").replaceChildren(...backends.map(({name}) => make("option", {}, name)), make("option", {}, OWN_TABLE));
  at("backend").value = "onnx";
  showBackend();
  // `backend_options` has fields of its own.
  const {schemas} = document_.components;
  optionsForm = formOf(fieldsOf(schemas.LegalizeOptions, ["backend_options"]), "option");
  explainOptions = Object.keys(schemas.ExplainOptions.properties);
  at("options").replaceChildren(...optionsForm.elements);
  const examples = document_.paths["/v1/legalize"].post.requestBody.content["application/json"].examples;
  example = Object.values(examples)[0].value.graph;
  const table = Object.values(examples).map(each => each.value.backend).find(each => typeof each === "object");
  at("backend-table").value = JSON.stringify(table, null, 1);
}

// A backend and options, as a request has them, in the form.
function fillRequest({backend, options}) {
  const isTable = typeof backend === "object";
  if (!isTable && !backends.some(({name}) => name === backend)) {
    backends.push({name: backend, summary: "This server does not have this backend.", options: []});
    at("backend").append(make("option", {}, backend));
  }
  at("backend").value = isTable ? OWN_TABLE : backend;
  if (isTable) at("backend-table").value = JSON.stringify(backend, null, 1);
  showBackend();
  optionsForm.fill(options);
  backendForm.fill(options.backend_options ?? {});
  // What is not as usual is in view.
  at("options-box").open = Object.keys(optionsForm.values()).length > 0;
}

function showBackend() {
  const chosen = backends.find(({name}) => name === at("backend").value);
  at("table-field").hidden = chosen !== undefined;
  at("backend-about").textContent = chosen ? chosen.summary : "A declarative backend: rules with layouts for operators.";
  const fields = (chosen?.options ?? []).map(each => ({name: each.name, schema: each.json_schema, default: parsed(each.default), about: each.about}));
  backendForm = formOf(fields, "backend-option");
  at("backend-options").replaceChildren(...backendForm.elements);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function asked() {
  const options = optionsForm.values();
  const own = backendForm.values();
  if (Object.keys(own).length) options.backend_options = own;
  const samples = [...at("samples").files];
  if (samples.length && model.graph) {
    throw new service.ServiceError({title: "No inputs for graph JSON", detail: "files of inputs go with an ONNX model",
      hint: "leave the inputs out, or send both as JSON to /v1/legalize"});
  }
  return {samples, backend: at("backend").value === OWN_TABLE ? parsedJson(at("backend-table").value, "The backend's table") : at("backend").value, options};
}

function parsedJson(text, where) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new service.ServiceError({title: "Not JSON", detail: `${where} is not JSON`, found: error.message});
  }
}

// ---- A model.

async function openFile(file) {
  try {
    const unpacked = await unpackedFile(file);
    const {name} = unpacked;
    checkSize(unpacked);
    // Its name alone makes no text of a protobuf, whose bytes a text has not.
    const start = await unpacked.slice(0, 256).text();
    const isJson = /^\s*\{/.test(start) || (/\.json$/i.test(name) && !/[\0-\x08]/.test(start));
    await (isJson ? openJson(name, await unpacked.text(), name) : openModel({name, bytes: unpacked}));
  } catch (error) {
    refuse(error);
  }
}

// The file, or the one that was packed with gzip in it.
async function unpackedFile(file) {
  const [first, second] = new Uint8Array(await file.slice(0, 2).arrayBuffer());
  if (first !== 0x1f || second !== 0x8b) return file;
  try {
    const content = await new Response(file.stream().pipeThrough(new DecompressionStream("gzip"))).blob();
    return new File([content], file.name.replace(/\.gz$/i, ""));
  } catch {
    // A browser's words for it are those of a request that failed.
    throw new service.ServiceError({title: "Not a whole gzip file", detail: `${file.name} cannot be unpacked`,
      hint: "the file may be cut off: gzip --test tells"});
  }
}

// The server would say so only after the whole file was sent.
function checkSize({name, size}) {
  if (size <= mostBytes) return;
  throw new service.ServiceError({title: "The model is too large", detail: `${name} was not sent`,
    expected: `at most ${bytes(mostBytes)}, the limit of this server`, found: bytes(size),
    hint: "the command relayout legalize has no such limit"});
}

// A graph, or a whole request of the service with a graph in it, and its backend and options.
async function openJson(name, text, where) {
  const content = parsedJson(text, where);
  if (typeof content?.graph !== "object" || content.nodes !== undefined) return openModel({name, graph: content});
  const {graph, backend, options} = content;
  const others = [backend !== undefined && "backend", options !== undefined && "options"].filter(Boolean);
  if (others.length) fillRequest({backend: backend ?? "onnx", options: options ?? {}});
  const placed = others.length ? `; its ${others.join(" and ")} ${others.length > 1 || options ? "are" : "is"} in step 2` : "";
  return openModel({name, graph}, `the graph of a request${placed}`);
}

// The page's address, without a job if none is given. The browser's Back leads to each job that was shown.
function showAddress(query = "") {
  if (location.search && location.search !== query) history.pushState(null, "", query || location.pathname);
  else history.replaceState(null, "", query || location.pathname);
}

const NO_MODEL = [...at("drop-text").childNodes];

// The model of the form, with words about it; null: none.
function setModel(opened, about) {
  model = opened;
  // Another model has other inputs.
  at("samples").value = "";
  // A browser keeps no file over a reload, but the page can say which one it was.
  if (opened?.name && !opened.job) sessionStorage.setItem("chosen", opened.name);
  else sessionStorage.removeItem("chosen");
  at("drop-text").replaceChildren(...(opened === null ? NO_MODEL : [make("strong", {}, opened.name ?? "A model without a name"), make("br"),
    make("span", opened.bytes ? {class: "size"} : {}, about), make("span", {class: "later"}, make("br"), "Drop another model to replace it")]));
  allow();
}

// The chosen file is none that can be legalized.
function refuse(error) {
  stop();
  clearResult();
  showAddress();
  setModel(null);
  fail(error);
}

// Show the model as it is. The answer and the downloads of the model before go.
async function openModel(opened, about = opened.bytes ? bytes(opened.bytes.size) : "graph JSON") {
  stop();
  clearResult();
  at("form").classList.remove("compact");
  showAddress();
  setModel(opened, about);
  const own = begin("Reading the model", () => openModel(opened, about));
  try {
    const {source} = await service.draw(opened, own.signal);
    if (running !== own) return;
    result = {source, legal: null, report: null, job: null, model: opened};
    await showGraph();
    say(`${opened.name}: ${count(source.nodes.length, "node")}. Choose a backend and legalize.`);
  } catch (error) {
    // What cannot be read cannot be legalized; a server that is busy may take it later.
    if ([400, 413, 422].includes(error.problem?.status)) {
      setModel(null);
      // The body that was sent is the file.
      if (["body", "the bytes given"].includes(error.problem.where)) error.problem.where = opened.name;
    }
    fail(error);
  } finally {
    end(own);
  }
}

function allow() {
  at("run").disabled = model === null || running !== null || optionsForm === null;
  at("run-hint").textContent = model === null ? "Choose a model first." : "";
  at("run-hint").hidden = model !== null || running !== null;
}

// ---- Work in progress. Only one thing runs at a time.

// `repeat`: does it once more, after it was cancelled. `job` is the job that runs, and `isOwn` whether the page sent it.
function begin(what, repeat) {
  const controller = new AbortController();
  running = {signal: controller.signal, abort: () => controller.abort(), job: null, isOwn: true, repeat};
  at("problem").hidden = true;
  at("cancelled").hidden = true;
  at("cancel").hidden = false;
  at("progress").hidden = false;
  at("stages").replaceChildren(make("li", {class: "now"}, what));
  at("solution").textContent = "";
  say(what);
  allow();
  return running;
}

function end(own) {
  if (running !== own) return;
  running = null;
  at("cancel").hidden = true;
  at("progress").hidden = true;
  allow();
}

function stop() {
  if (!running) return;
  const own = running;
  // Others may wait for the job of a link.
  if (own.job && own.isOwn) service.cancelJob(own.job).catch(() => {});
  own.abort();
  end(own);
}

function cancel() {
  if (!running) return;
  const {repeat} = running;
  running.isOwn = true;
  stop();
  showCancelled(repeat);
}

// The address still names the job, so that a reload shows the same.
function showCancelled(repeat) {
  again = model ? repeat : null;
  at("cancelled-text").textContent = again ? "The model is still chosen." : "Choose the model again to legalize it.";
  at("again").hidden = again === null;
  at("cancelled").hidden = false;
  at("cancelled").scrollIntoView({block: "nearest"});
  say("Cancelled");
}

function showStage(stage, state, kind = "legalize") {
  const list = STAGES.filter(([name]) => STAGES_OF[kind]?.includes(name) ?? true);
  const known = list.findIndex(([name]) => name === stage);
  if (known < 0) list.push([stage, stage]);
  const now = list.findIndex(([name]) => name === stage);
  at("stages").replaceChildren(...list.map(([, text], i) =>
    make("li", {class: i < now ? "done" : i === now ? "now" : null, "aria-current": i === now ? "step" : null}, text)));
  say(`${state}: ${list[now][1]}`);
}

const objectiveOf = options => options?.objective ?? "bytes";

const LOST = "The server does not answer. Trying again; it keeps the job.";

function onEvent(objective, kind) {
  return (name, data) => {
    if (name === "lost") {
      at("solution").textContent = LOST;
      say(LOST);
    } else if (at("solution").textContent === LOST) {
      at("solution").textContent = "";
    }
    if (name === "stage") showStage(data.stage, "Working", kind);
    if (name === "solution" && data.cost !== null && data.cost !== undefined) {
      at("solution").textContent = `Best so far: ${cost(data.cost, objective)}; proved: at least ${cost(data.bound ?? 0, objective)}.`;
    }
  };
}

async function legalize() {
  if (running || !model) return;
  // The drawing of the model alone stays until the result takes its place.
  if (result === null || result.report) clearResult();
  let request;
  try {
    request = asked();
  } catch (error) {
    fail(error);
    return;
  }
  const own = begin("Sending the model", legalize);
  try {
    const job = await service.createJob("legalize", model, request, own.signal);
    own.job = job.id;
    showAddress(`?job=${encodeURIComponent(job.id)}`);
    await finishJob(job, own, objectiveOf(request.options), request);
  } catch (error) {
    fail(error);
  } finally {
    end(own);
  }
}

async function finishJob({id, kind}, own, objective, request) {
  showStage("queued", "Working", kind);
  const job = await service.follow(id, onEvent(objective, kind), own.signal);
  if (running !== own) return;
  if (job.state === "cancelled") {
    showCancelled(legalize);
    return;
  }
  if (job.state !== "succeeded") throw new service.ServiceError(job.problem);
  const path = `v1/jobs/${encodeURIComponent(id)}`;
  if (job.kind !== "legalize") {
    const report = await service.getJson(`${path}/report`, own.signal);
    if (running === own) showReport({source: null, legal: null, report, job, model, request});
    return;
  }
  const {source, legal, report} = await service.getJson(`${path}/graph`, own.signal);
  if (running === own) await showResult({source, legal, report, job, model, request});
}

// A link to a job, or a reload.
async function openJob(id) {
  const own = begin("Looking for the job", legalize);
  own.isOwn = false;
  try {
    const job = await service.jobOf(id, own.signal);
    own.job = job.id;
    const request = await askedOf(job, own.signal);
    if (running !== own) return;
    if (request) {
      fillRequest(request);
      setModel(request.model, `${job.name === null ? "" : "the model "}of job ${id.slice(0, 8)}`);
    }
    // The form has only what differs from the defaults.
    await finishJob(job, own, objectiveOf(request?.options), request && asked());
  } catch (error) {
    fail(error);
  } finally {
    end(own);
  }
}

// What was asked for in a job; null where the server no longer has it.
async function askedOf(job, signal) {
  try {
    return await service.requestOfJob(job, signal);
  } catch (error) {
    if (error.name === "AbortError" || error.problem?.status === 401) throw error;
    return null;
  }
}

// ---- Problems.

function fail(error) {
  if (error.name === "AbortError") {
    say("Cancelled");
    return;
  }
  const problem = error.problem ?? {title: "The page failed", detail: String(error)};
  if (problem.status === 401) {
    askForKey(problem);
    return;
  }
  if (problem.status === 403) at("key-form").hidden = false;
  const lines = ["where", "expected", "found", "hint"].filter(name => problem[name]);
  const list = (title, texts) => texts?.length && [make("p", {}, title), make("ul", {}, texts.map(text => make("li", {}, text)))];
  at("problem").replaceChildren(
    make("strong", {}, problem.title), make("p", {}, problem.detail ?? ""),
    ...[lines.length ? make("dl", {}, lines.map(name => [make("dt", {}, name), make("dd", {}, String(problem[name]))])) : "",
      list("These requirements contradict each other:", problem.conflict), list("It would be possible if:", problem.relaxation)].flat().filter(Boolean));
  at("problem").hidden = false;
  at("problem").scrollIntoView({block: "nearest"});
}

// ---- The result.

function clearResult() {
  result = null;
  for (const url of urls) URL.revokeObjectURL(url);
  urls = [];
  for (const view of views) view.close();
  views = [];
  found = [];
  at("search").value = "";
  at("matches").textContent = "";
  for (const id of ["result", "graph", "tables", "problem", "cancelled"]) at(id).hidden = true;
  at("intro").hidden = true;
  for (const id of ["summary", "downloads", "details", "tables"]) at(id).replaceChildren();
  fold(false);
}

async function showResult(shown) {
  clearResult();
  result = shown;
  at("form").classList.add("compact");
  fold(true);
  showSummary();
  showDownloads();
  showTables();
  at("result-title").focus();
  await showGraph();
}

// On a narrow screen, a result has the place of the form, which a line and a button stand for.
function fold(isFolded) {
  at("fold").hidden = !isFolded && result === null;
  at("fold-text").replaceChildren(make("strong", {}, model?.name ?? "Model"), ` for ${result?.report?.backend ?? "a backend"}`);
  at("form").classList.toggle("folded", isFolded);
  at("unfold").setAttribute("aria-expanded", String(!isFolded));
}

function showReport(shown) {
  clearResult();
  result = shown;
  fold(true);
  showSummary();
  showDownloads();
  showTables();
}

function showSummary() {
  const {report} = result;
  const {before, after, objective} = report;
  const gone = before.transposes - after.transposes;
  const headline = report.status === "verified" || report.status === "failed" ? (report.status === "verified" ? "The model is legal." : "The model is not legal.")
    : before.transposes === 0 && after.transposes === 0 && !report.conversions.length ? "Nothing to convert: the graph runs without a transpose."
    : gone > 0 ? `${count(gone, "transpose")} of ${before.transposes.toLocaleString("en")} removed, ${after.transposes.toLocaleString("en")} left.`
    : gone === 0 ? `${count(after.transposes, "transpose")}, as before.`
    : `${count(-gone, "transpose")} more than in the source: the layouts that are required need ${gone === -1 ? "it" : "them"}.`;
  const proof = report.cost === null ? "" : report.status === "optimal" ? "Proved: no legal graph costs less."
    : `Not proved: the cost is ${cost(report.cost, objective)}, and at least ${cost(report.bound ?? 0, objective)} is needed. More time may find a cheaper graph.`;
  const tile = (name, first, last, format) => make("div", {class: "tile"}, make("b", {}, first === last ? format(last) : `${format(first)} → ${format(last)}`), make("span", {}, name));
  const plain = number => number.toLocaleString("en");
  at("summary").replaceChildren(
    make("p", {class: "headline"}, headline),
    make("p", {}, `Backend ${report.backend}. ${proof} ${reasons(report)}`),
    make("div", {class: "tiles"},
      tile("transposes", before.transposes, after.transposes, plain), tile("moved by transposes", before.bytes, after.bytes, bytes),
      tile("nodes", before.nodes, after.nodes, plain),
      (before.reorders > 0 || after.reorders > 0) && tile("reorders by the backend", before.reorders, after.reorders, plain),
      report.cost !== null && make("div", {class: "tile"}, make("b", {}, cost(report.cost, objective)), make("span", {}, `cost of the legal graph, by ${objective}`))),
    ...verificationOf(report.verification),
    ...report.warnings.map(warning => make("p", {class: "problem warning"}, `Warning: ${warning}`)));
  at("result").hidden = false;
  say(`${headline} ${proof}`);
}

// The requirements behind the conversions that are left, the most frequent first.
function reasons({conversions}) {
  const found = new Map();
  for (const {node, layout} of conversions.flatMap(conversion => conversion.required_by)) {
    const [operator] = node.split(" ");
    const text = /^(in|out)put /.test(node) ? `the ${operator} of the graph has ${layoutText(layout)}` : `${operator} requires ${layoutText(layout)}`;
    found.set(text, (found.get(text) ?? 0) + 1);
  }
  const sorted = [...found].sort((a, b) => b[1] - a[1]);
  const shown = sorted.slice(0, 3).map(([text, times]) => `${text}${times > 1 ? ` (${times} times)` : ""}`);
  if (!shown.length) return "";
  return `${count(conversions.length, "conversion")} left, because ${shown.join("; ")}${sorted.length > 3 ? `; and ${sorted.length - 3} more` : ""}.`;
}

function verificationOf(verification) {
  if (!verification) return [];
  const {passed, findings, numeric} = verification;
  const outputs = numeric?.outputs ?? [];
  const kept = numeric?.kept?.length ?? 0;
  const good = outputs.filter(each => each.passed).length;
  const sentences = [];
  if (outputs.length) {
    sentences.push(`${good} of ${count(outputs.length, "output")} equal to the source's on ${count(numeric.samples, "sample")} of the inputs.`);
  }
  if (kept) sentences.push(`${count(kept, "output")} not run, and computed as in the source from values that were compared.`);
  const numbers = sentences.join(" ") || `The outputs were not compared${numeric?.reason ? `: ${numeric.reason}` : ""}.`;
  const errors = findings.filter(each => each.severity === "error").length;
  return [make("p", {}, make("strong", {}, passed ? "Verified: " : "Verification failed: "),
    `${errors ? count(errors, "error") : "no errors"} in the layouts. ${numbers}`)];
}

function download(name, text, blob) {
  const url = URL.createObjectURL(blob);
  urls.push(url);
  return make("a", {class: "button", href: url, download: name}, text);
}

function save(name, blob) {
  const link = download(name, "", blob);
  document.body.append(link);
  link.click();
  link.remove();
}

function showDownloads() {
  const {report, job, legal} = result;
  const stem = (result.model?.name ?? legal?.name ?? "model").replace(/\.(onnx|json)$/i, "") || "model";
  const fetched = async (button, what) => {
    button.disabled = true;
    try {
      const blob = await service.getBlob(`v1/jobs/${encodeURIComponent(job.id)}/model`);
      save(`${stem}.legal.${blob.type.includes("json") ? "json" : "onnx"}`, blob);
    } catch (error) {
      fail(error);
    }
    button.disabled = false;
  };
  at("downloads").replaceChildren(...[
    job && legal && make("button", {type: "button", id: "get-model", onclick: event => fetched(event.currentTarget)}, "Download model"),
    download(`${stem}.report.json`, "Download report", new Blob([JSON.stringify(report, null, 1)], {type: "application/json"})),
    legal && make("button", {type: "button", id: "get-svg", onclick: () => {
      const view = views[0];
      if (view?.placed) save(`${stem}.${mode}.svg`, new Blob([svgOf(view.picture, view.placed, stem)], {type: "image/svg+xml"}));
    }}, "Download SVG"),
    job && make("a", {class: "button", href: `?job=${encodeURIComponent(job.id)}`}, "Link to this result"),
  ].filter(Boolean));
}

// ---- The graph.

async function showGraph() {
  at("graph").hidden = false;
  const compared = result.legal !== null;
  if (!compared) mode = "before";
  else if (mode === "before" && !views.length) mode = "changes";
  at("change-steps").hidden = !compared;
  at("modes").replaceChildren(...(compared ? MODES : []).map(([name, text]) =>
    make("button", {type: "button", "aria-pressed": String(mode === name), onclick: () => { mode = name; showGraph(); }}, text)));
  const focus = views.length && views[0].selected !== null ? views[0].picture.nodes[views[0].selected].key : undefined;
  for (const view of views) view.close();
  const shown = mode === "side" ? ["before", "after"] : [mode];
  const names = {changes: "Changes", before: compared ? "Before" : "The model", after: "After"};
  views = shown.map(name => new GraphView(names[name], onSelect));
  at("canvases").replaceChildren(...views.map(view => view.element));
  showModel();
  showLegend(compared);
  const own = views;
  await Promise.all(shown.map((name, i) => own[i].show(pictureOf(result, name, at("constants").checked), focus)));
  if (own !== views) return;
  if (focus !== undefined) showDetails(views.map(view => view.selected).findIndex(selected => selected !== null));
  searchNow();
}

function showLegend(compared) {
  const all = ["conversion", "part", "removed", "added", "relaid", "kept"];
  const absent = {changes: [], side: [], before: ["conversion", "part", "added"], after: ["removed"]};
  const kinds = compared ? all.filter(kind => !absent[mode].includes(kind)) : [];
  at("legend").replaceChildren(...kinds.map(kind => make("span", {}, make("i", {class: `i-${kind}`}), kindText(kind))));
}

function onSelect(view, index) {
  view.select(index, false);
  const key = index === null ? null : view.picture.nodes[index].key;
  for (const other of views) if (other !== view) key === null ? other.select(null, false) : other.selectKey(key, true);
  showDetails(views.indexOf(view));
}

const showModel = () => at("details").replaceChildren(...modelOf(mode === "after" ? result.legal : result.source));

function showDetails(number) {
  const view = views[number];
  const node = view && view.selected !== null ? view.picture.nodes[view.selected] : null;
  if (!node) {
    showModel();
    return;
  }
  const neighbours = (title, indices) => indices.length > 0 && [make("h3", {}, title), make("ul", {class: "list"},
    [...new Set(indices)].slice(0, 20).map(index => make("li", {}, linkTo(view.picture.nodes[index].key))))];
  at("details").replaceChildren(...detailsOf(node, result, go).filter(Boolean),
    ...[neighbours("Above", view.incoming[view.selected]), neighbours("Below", view.outgoing[view.selected])].flat().filter(Boolean));
  at("details").scrollTop = 0;
  say(`${node.key}, ${result.report ? kindText(node.kind) : ""} ${node.line}. ${count(view.incoming[view.selected].length, "node")} above, ${count(view.outgoing[view.selected].length, "node")} below.`);
}

const linkTo = key => make("button", {type: "button", class: "plain", onclick: () => go(key)}, key);

// Select a node by its key in every view that has it; a removed node is in the view of the changes.
function go(key) {
  const known = views.find(view => view.picture?.number.has(key));
  if (!known) {
    say(`${key} is not in this view`);
    return;
  }
  for (const view of views) view.selectKey(key, true);
  showDetails(views.indexOf(known));
  at("canvases").scrollIntoView({block: "nearest"});
}

function step(by) {
  const view = views.find(each => each.changes?.length) ?? views[0];
  const next = view?.nextChange(by);
  if (next === null || next === undefined) {
    say("There is no change");
    return;
  }
  view.select(next, true);
  onSelect(view, next);
}

function searchNow() {
  if (!result?.source || !views.length) return;
  const text = at("search").value;
  const all = views.map(view => search(view.picture, result, text));
  views.forEach((view, i) => {
    view.matches = new Set(all[i]);
    view.redraw();
  });
  found = all[0].length ? all[0].map(index => views[0].picture.nodes[index].key) : (all[1] ?? []).map(index => views[1].picture.nodes[index].key);
  at("matches").textContent = text.trim() ? (found.length ? `${found.length} found; Enter goes to the next` : "nothing found") : "";
}

function nextMatch(by) {
  if (!found.length) return;
  const current = views[0].selected === null ? -1 : found.indexOf(views[0].picture.nodes[views[0].selected].key);
  go(found[(current + by + found.length) % found.length]);
}

// ---- Tables.

const SAVINGS = "Work out the savings";

function showTables() {
  const {report, source, legal} = result;
  const tables = [];
  const {conversions, objective} = report;
  const explained = report.explanation !== null && report.explanation !== undefined;
  if (legal || explained) {
    tables.push(conversions.length || explained ? tableOf("Conversions and their reasons",
      "The conversions of the legal graph, with the bytes that each moves and the requirements that ask for it.", [
        {title: "Value", value: row => row.value, wide: true}, {title: "From", value: row => layoutText(row.from), wraps: true}, {title: "To", value: row => layoutText(row.to), wraps: true},
        {title: "Moves", value: row => row.bytes, show: row => bytes(row.bytes), number: true},
        ...(explained ? [{title: "Saved without", value: row => row.saved?.cost ?? 0, show: row => (row.saved ? cost(row.saved.cost, objective) : ""), number: true}] : []),
        {title: "Because", value: row => row.required_by.map(each => `${each.node} ${each.layout}`).join(" "), show: row => reasonsOf(row, objective, go), wide: true},
        {title: "Kind", value: row => row.kind},
      ], conversions, "conversions-title") : make("div", {}, make("h2", {}, "Conversions"), make("p", {}, "The legal graph has none.")));
    if (conversions.length && !explained) {
      tables.push(make("div", {}, make("h2", {}, "Cost of each requirement"), ...(result.request && result.model ? [
        make("p", {class: "note"}, "The problem is solved again without each requirement: the difference is the saving."),
        make("button", {type: "button", id: "explain", onclick: explain}, SAVINGS)] : [
        make("p", {}, "The savings cannot be worked out here: the server no longer has the model. Choose it again, and legalize it.")])));
    }
    if (explained) {
      const {shared, solved, unsolved} = report.explanation;
      tables.push(tableOf("Cost of each requirement", `Solved again ${count(solved, "time")}${unsolved ? `; ${count(unsolved, "requirement")} left out` : ""}. Saved: the cost without all requirements of the row.`, [
        {title: "Operator", value: row => row.operator}, {title: "Layout", value: row => layoutText(row.layout), wraps: true}, {title: "At", value: row => partText(row)},
        {title: "Nodes", value: row => nodesOf(row).join(" "), show: row => someOf(nodesOf(row)), wide: true},
        {title: "Requirements", value: row => row.requirements, number: true}, {title: "Conversions", value: row => row.conversions, number: true},
        {title: "Saved", value: row => row.saved.cost, show: row => cost(row.saved.cost, objective) + (row.saved.exact ? "" : " or more"), number: true},
        {title: "Transposes saved", value: row => row.saved.transposes, number: true},
      ], shared, "savings-title"));
    }
    if (legal) tables.push(nodesTable(source, legal, report));
  }
  if (report.charges?.length) {
    tables.push(tableOf("Operators that have a cost", "", [
      {title: "Operator", value: row => row.node, wide: true}, {title: "Layout", value: row => layoutText(row.layout)},
      {title: "Kind", value: row => row.kind},
      {title: "Cost", value: row => row.cost, show: row => bytes(row.cost), number: true},
    ], report.charges, "charges-title"));
  }
  if (report.transfers.length) {
    tables.push(tableOf("Transfers between devices", "", [
      {title: "Value", value: row => row.value, wide: true}, {title: "From", value: row => row.from}, {title: "To", value: row => row.to},
      {title: "Layout", value: row => layoutText(row.layout)}, {title: "Bytes", value: row => row.bytes, show: row => bytes(row.bytes), number: true},
    ], report.transfers, "transfers-title"));
  }
  if (report.boundary.length) {
    tables.push(tableOf("Inputs and outputs", "The layouts that the caller sees.", [
      {title: "Name", value: row => row.name, wide: true}, {title: "Side", value: row => row.side}, {title: "Layout", value: row => layoutText(row.layout)},
      {title: "Shape", value: row => (row.shape ? row.shape.map(dim => dim ?? "?").join("×") : "")},
      {title: "Asked for", value: row => row.wanted}, {title: "Order of the source's axes", value: row => row.order?.join(", ")},
    ], report.boundary, "boundary-title"));
  }
  if (report.verification?.findings.length) {
    tables.push(tableOf("Findings", "", [
      {title: "Severity", value: row => row.severity}, {title: "Rule", value: row => row.rule}, {title: "Node", value: row => row.node, wide: true},
      {title: "Message", value: row => row.message, wide: true},
    ], report.verification.findings, "findings-title"));
  }
  if (report.verification?.numeric?.outputs.length) {
    tables.push(tableOf("Outputs compared", "", [
      {title: "Output", value: row => row.name, wide: true}, {title: "Equal", value: row => (row.passed ? "yes" : "no")},
      {title: "Largest difference", value: row => Number(row.max_abs), show: row => String(row.max_abs), number: true},
      {title: "Relative", value: row => Number(row.max_rel), show: row => String(row.max_rel), number: true},
      {title: "Allowed", value: row => Number(row.tolerance), show: row => String(row.tolerance), number: true},
    ], report.verification.numeric.outputs, "outputs-title"));
  }
  at("tables").replaceChildren(...tables);
  at("tables").hidden = tables.length === 0;
}

// The nodes whose requirements a row of the savings counts.
function nodesOf(row) {
  const reasons = result.report.conversions.flatMap(conversion => conversion.reasons);
  const own = reasons.filter(({node, part, operand, layout}) =>
    part === row.part && operand === row.operand && layout === row.layout && (node === row.operator || node.startsWith(`${row.operator} '`)));
  return [...new Set(own.map(({node}) => node))];
}

function someOf(keys) {
  const more = keys.slice(3);
  return make("div", {}, keys.slice(0, 3).map(key => make("div", {}, linkTo(key))), more.length > 0 && make("span", {class: "note"}, `and ${more.length} more`));
}

function nodesTable(source, legal, report) {
  const {nodes} = pictureOf({source, legal, report}, "changes", false);
  const rows = nodes.filter(node => !node.io);
  const rank = {conversion: 0, part: 1, removed: 2, added: 3, relaid: 4, kept: 5};
  rows.sort((a, b) => rank[a.kind] - rank[b.kind]);
  return tableOf("Nodes", `${count(rows.filter(row => CHANGES.has(row.kind)).length, "node")} changed.`, [
    {title: "Node", value: row => row.name, show: row => linkTo(row.key), wide: true}, {title: "Operator", value: row => row.title},
    {title: "Change", value: row => kindText(row.kind)}, {title: "Layout", value: row => (row.says === "layout" ? row.line : `${row.says} ${row.line}`)},
    {title: "Alternatives", value: row => row.before?.node.choice?.count, number: true},
  ], rows, "nodes-title");
}

// The same request as an explain job; its report has the reasons of the same conversions.
async function explain() {
  if (running) return;
  const {request} = result;
  const shown = result;
  const own = begin("Working out the savings", explain);
  at("explain").disabled = true;
  at("explain").textContent = "Working out the savings…";
  try {
    const options = Object.fromEntries(Object.entries(request.options).filter(([name]) => explainOptions.includes(name)));
    const job = await service.createJob("explain", shown.model, {backend: request.backend, options}, own.signal);
    own.job = job.id;
    const ended = await service.follow(job.id, onEvent(objectiveOf(options), "explain"), own.signal);
    if (ended.state !== "succeeded") throw new service.ServiceError(ended.problem ?? {title: "Cancelled", detail: "another page cancelled the work"});
    const answer = await service.getJson(`v1/jobs/${encodeURIComponent(job.id)}/report`, own.signal);
    if (result !== shown) return;
    result = {...shown, report: {...shown.report, conversions: answer.conversions, explanation: answer.explanation}};
    showTables();
    showDownloads();
    say("The savings are in the table of the requirements");
  } catch (error) {
    fail(error);
    if (at("explain")) {
      at("explain").disabled = false;
      at("explain").textContent = SAVINGS;
    }
  } finally {
    end(own);
  }
}

// ---- Events.

function listen() {
  at("backend").addEventListener("change", showBackend);
  at("file").addEventListener("change", event => {
    const [file] = event.target.files;
    // The same file may be chosen again.
    event.target.value = "";
    if (file) openFile(file);
  });
  at("example").addEventListener("click", () => { if (example) openModel({name: "example.json", graph: example}); });
  at("use-text").addEventListener("click", () => openJson("pasted.json", at("text").value, "The text").catch(fail));
  at("form").addEventListener("submit", event => {
    event.preventDefault();
    legalize();
  });
  at("cancel").addEventListener("click", cancel);
  at("again").addEventListener("click", () => again());
  at("unfold").addEventListener("click", () => fold(!at("form").classList.contains("folded")));
  at("key-form").addEventListener("submit", event => {
    event.preventDefault();
    useKey();
  });
  let inside = 0;
  const files = event => event.dataTransfer?.types.includes("Files");
  addEventListener("dragenter", event => { if (files(event)) { inside += 1; at("drop-over").hidden = false; } });
  addEventListener("dragleave", event => { if (files(event)) { inside -= 1; at("drop-over").hidden = inside > 0; } });
  addEventListener("dragover", event => { if (files(event)) event.preventDefault(); });
  addEventListener("drop", event => {
    if (!files(event)) return;
    event.preventDefault();
    inside = 0;
    at("drop-over").hidden = true;
    const [file] = event.dataTransfer.files;
    if (file) openFile(file);
  });
  at("search").addEventListener("input", searchNow);
  at("search").addEventListener("keydown", event => {
    if (event.key === "Enter") {
      event.preventDefault();
      nextMatch(event.shiftKey ? -1 : 1);
    }
  });
  at("previous-change").addEventListener("click", () => step(-1));
  at("next-change").addEventListener("click", () => step(1));
  at("zoom-in").addEventListener("click", () => views.forEach(view => view.zoom(1.3)));
  at("zoom-out").addEventListener("click", () => views.forEach(view => view.zoom(1 / 1.3)));
  at("fit").addEventListener("click", () => views.forEach(view => view.fit()));
  at("constants").addEventListener("change", () => { if (result) showGraph(); });
}

async function start() {
  try {
    if (!optionsForm) await fillForm();
    at("form").hidden = false;
    allow();
    const job = new URLSearchParams(location.search).get("job");
    const chosen = sessionStorage.getItem("chosen");
    if (job) await openJob(job);
    else if (!model && chosen) at("run-hint").textContent = `The page was loaded again: choose ${chosen} once more.`;
    else if (model && !result) await openModel(model);
  } catch (error) {
    fail(error);
  }
}

listen();
// The page of another address begins anew.
addEventListener("popstate", () => location.reload());
start();
