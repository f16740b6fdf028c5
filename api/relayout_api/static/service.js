// Requests to the service. Errors are problem details (RFC 9457), thrown as ServiceError.

export class ServiceError extends Error {
  constructor(problem) {
    super(problem.detail ?? problem.title);
    this.problem = problem;
  }
}

let key = sessionStorage.getItem("key");

export const hasKey = () => Boolean(key);

export function useKey(text) {
  key = text;
  sessionStorage.setItem("key", text);
}

async function ask(path, {method = "GET", headers = {}, body, signal} = {}) {
  const all = key ? {...headers, Authorization: `Bearer ${key}`} : headers;
  let response;
  try {
    response = await fetch(path, {method, headers: all, body, signal});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError({title: "No answer", detail: "the server cannot be reached", hint: "is it still running?"});
  }
  if (response.ok) return response;
  let problem;
  try {
    problem = await response.json();
  } catch {
    problem = {title: response.statusText || "Error", detail: `the server answered with status ${response.status}`};
  }
  throw new ServiceError({status: response.status, ...problem});
}

export const getJson = async (path, signal) => (await ask(path, {signal})).json();

export const getBlob = async (path, signal) => (await ask(path, {signal})).blob();

// The query and body of a request about a model: {name, graph} or {name, bytes}. A model of a job, {name, job}, gets its
// bytes when they are needed. `samples` are the files of its inputs.
function requestOf(model, {backend, options, samples = []} = {}) {
  if (model.graph) {
    const body = JSON.stringify({graph: model.graph, ...(backend ? {backend} : {}), ...(options ? {options} : {})});
    return {query: new URLSearchParams(), headers: {"Content-Type": "application/json"}, body};
  }
  const query = new URLSearchParams();
  if (backend) query.set("backend", typeof backend === "string" ? backend : JSON.stringify(backend));
  for (const [name, value] of Object.entries(options ?? {})) {
    if (value !== null && typeof value === "object") {
      for (const [each, own] of Object.entries(value)) {
        query.append(name.replace(/s$/, ""), `${each}=${typeof own === "string" ? own : JSON.stringify(own)}`);
      }
    } else {
      query.set(name, value);
    }
  }
  if (!samples.length) return {query, headers: {"Content-Type": "application/octet-stream"}, body: model.bytes};
  const form = new FormData();
  form.append("model", model.bytes);
  for (const file of samples) form.append("inputs", file);
  return {query, headers: {}, body: form};
}

// The drawing of a model as it is.
export async function draw(model, signal) {
  const {query, headers, body} = requestOf(model);
  return (await ask(`v1/graph?${query}`, {method: "POST", headers, body, signal})).json();
}

export async function createJob(kind, model, request, signal) {
  if (model.job && !model.bytes) model.bytes = await getBlob(sourceOf(model.job), signal);
  const {query, headers, body} = requestOf(model, request);
  query.set("kind", kind);
  if (model.name) query.set("name", model.name.slice(-255));
  return (await ask(`v1/jobs?${query}`, {method: "POST", headers, body, signal})).json();
}

export const jobOf = (id, signal) => getJson(`v1/jobs/${encodeURIComponent(id)}`, signal);

const sourceOf = id => `v1/jobs/${encodeURIComponent(id)}/source`;

// What a job was submitted with: {model, backend, options}. The job has the options of an ONNX model, and a JSON body its own.
export async function requestOfJob({id, name, backend, options}, signal) {
  if (backend !== null) return {model: {name, job: id}, backend, options};
  const body = await getJson(sourceOf(id), signal);
  // A job that failed may have been no request at all.
  return body?.graph ? {model: {name, graph: body.graph}, backend: body.backend ?? "onnx", options: body.options ?? {}} : null;
}

export const cancelJob = id => ask(`v1/jobs/${encodeURIComponent(id)}`, {method: "DELETE"});

const ENDED = ["succeeded", "failed", "cancelled"];

// So many times in a row, with longer and longer pauses, 39 seconds in all: a server that starts again takes some of them.
const ATTEMPTS = 12;

// No answer, or that of a server that starts or stops, or of a proxy that does not reach it.
const willPass = ({status, type}) => status === undefined || status === 503 || ((status === 502 || status === 504) && type === undefined);

// Follow a job to its end: `onevent(name, data)` for each event, for `lost`, where the server is not there for now, and for
// `found`, where it is there again. Returns the ended job. A stream that breaks is resumed by the id of its last event.
export async function follow(id, onevent, signal) {
  let last = null;
  for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
    let isThere = false;
    try {
      const job = await jobOf(id, signal);
      if (ENDED.includes(job.state)) return job;
      if (attempt > 0) onevent("found", {});
      // A proxy may cut off each stream while the server and the job are well.
      [attempt, isThere] = [0, true];
      const headers = {Accept: "text/event-stream", ...(last ? {"Last-Event-ID": last} : {})};
      const response = await ask(`v1/jobs/${encodeURIComponent(id)}/events`, {headers, signal});
      for await (const event of eventsOf(response.body)) {
        last = event.id ?? last;
        onevent(event.name, event.data);
        if (event.name === "done") return event.data;
      }
    } catch (error) {
      if (error.name === "AbortError" || (error instanceof ServiceError && !willPass(error.problem))) throw error;
      if (!isThere) onevent("lost", {});
    }
    await new Promise(resolve => setTimeout(resolve, 500 * (attempt + 1)));
  }
  throw new ServiceError({title: "No answer", detail: "the connection to the server was lost", hint: "open the job's link again"});
}

// The events of a stream (WHATWG HTML, server-sent events). EventSource cannot send a key.
async function* eventsOf(stream) {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of chunksOf(stream)) {
    rest += decoder.decode(chunk, {stream: true});
    const blocks = rest.split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = {};
      for (const line of block.split(/\r?\n/)) {
        const mark = line.indexOf(":");
        if (mark <= 0) continue;
        const [name, value] = [line.slice(0, mark), line.slice(mark + 1).replace(/^ /, "")];
        fields[name] = name === "data" && fields.data !== undefined ? `${fields.data}\n${value}` : value;
      }
      if (fields.data !== undefined) yield {id: fields.id, name: fields.event ?? "message", data: JSON.parse(fields.data)};
    }
  }
}

async function* chunksOf(stream) {
  const reader = stream.getReader();
  try {
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
