// The server's routes. URLs are relative to the page, so that a proxy may serve it under a prefix.
import { parse } from "./exact_json.js";

// Browsers refuse requests to an address with credentials, such as https://me:KEY@host/console, and send the
// credentials of the page to its address without them.
const HOME = new URL(document.baseURI);
HOME.username = HOME.password = "";
export const absolute = (url) => new URL(url, HOME).href;

export const EVENTS = absolute("console/events");
export const readStatus = () => readJson("debug/status");
export const readLabels = async (model, version) =>
  (await readJson(`console/labels/${encodeURIComponent(model)}/${version}`)).labels;

// Names of models that a client has unloaded. The status lists only the configured ones.
export async function readUnloaded(status) {
  const answer = await post("v2/repository/index", "{}");
  if (!answer.ok) return [];
  const configured = new Set(status.models.map((model) => model.name));
  const names = (await answer.json()).map((entry) => entry.name);
  return [...new Set(names)].filter((name) => !configured.has(name));
}

export const modelUrl = (model, version, method) =>
  `v1/models/${encodeURIComponent(model)}/versions/${version}:${method}`;

// Loads or unloads all versions of a model. `action` is "load" or "unload".
export async function control(model, action) {
  const answer = await post(`v2/repository/models/${encodeURIComponent(model)}/${action}`, "{}");
  if (!answer.ok) throw new Error(await readError(answer));
}

// Sends a request and measures it. Returns the status, the response's text and headers, and the round trip in ms.
export async function send(url, body) {
  const started = performance.now();
  const answer = await post(url, body, { "x-tpuserve-timing": "1" });
  const text = await answer.text();
  return {
    status: answer.status,
    isGood: answer.ok,
    text,
    headers: answer.headers,
    roundTripMs: performance.now() - started,
  };
}

const post = (url, body, headers = {}) =>
  fetch(absolute(url), { method: "POST", headers: { "content-type": "application/json", ...headers }, body });

async function readJson(url) {
  const answer = await fetch(absolute(url), { cache: "no-store" });
  if (!answer.ok) throw new Error(await readError(answer));
  return parse(await answer.text());
}

async function readError(answer) {
  const text = await answer.text();
  try {
    return JSON.parse(text).error ?? text;
  } catch {
    return text.slice(0, 500) || `HTTP status ${answer.status}`;
  }
}
