// Problems of the server, from its status and its newest snapshot. The worst come first.
import { describeFallback, isProblem } from "./fallback.js";
import { percent, rate } from "./figures.js";

const MUCH_ERROR = 0.05;
// Codes that count against the availability in the rules of the alerts. Clients cause the others.
const FAULTS = new Set([
  "UNKNOWN",
  "DEADLINE_EXCEEDED",
  "RESOURCE_EXHAUSTED",
  "INTERNAL",
  "UNAVAILABLE",
  "DATA_LOSS",
]);
const NEARLY_FULL = 0.9;
// As in the alert TpuserveCertificateExpires.
const WARNING_DAYS = 14;
const STATES = {
  starting: ["warn", "The server starts"],
  not_ready: ["bad", "The server is not ready"],
  draining: ["warn", "The server drains and accepts no new work"],
};
const PENDING = { START: "waiting", LOADING: "loading", UNLOADING: "unloading" };

// Returns objects of `level` ("bad" or "warn"), `text` and `detail`.
export function findProblems(status, snapshot) {
  const found = [
    ...ofServer(status.server, snapshot),
    ...status.models.flatMap((model) => ofModel(model, status.devices)),
    ...(snapshot?.versions ?? []).flatMap(ofTraffic),
    ...(snapshot?.devices ?? []).flatMap(ofDevice),
  ];
  return found.sort((one, other) => (one.level === other.level ? 0 : one.level === "bad" ? -1 : 1));
}

export const nameOf = (model, version) => `${model} version ${version}`;

function ofServer(server, snapshot) {
  const state = snapshot?.state ?? server.state;
  const problems = ofCertificates(server.certificates);
  if (!STATES[state]) return problems;
  const [level, text] = STATES[state];
  return [{ level, text, detail: server.reason }, ...problems];
}

function ofCertificates(certificates) {
  if (!certificates) return [];
  const problems = Object.entries(certificates.expires_unix_s).flatMap(([name, end]) => ofExpiry(name, end));
  if (!certificates.reload_failed) return problems;
  const detail = certificates.reload_failure ?? "The log of the server has the reason";
  return [...problems, { level: "warn", text: "The server could not read its new TLS certificates", detail }];
}

function ofExpiry(name, end) {
  const days = (end * 1000 - Date.now()) / 86_400_000;
  if (days > WARNING_DAYS) return [];
  const what = name === "server" ? "The TLS certificate" : "An authority of client certificates";
  const detail = new Date(end * 1000).toLocaleString([], { hour12: false });
  if (days > 0) return [{ level: "warn", text: `${what} expires in ${days.toFixed(1)} days`, detail }];
  return [{ level: "bad", text: `${what} has expired`, detail }];
}

function ofModel(model, devices) {
  const newest = Math.max(...model.versions.filter((one) => one.state === "AVAILABLE").map((one) => one.version));
  // The server keeps reporting a failed version. A newer one that serves has replaced it.
  const current = model.versions.filter((one) => one.version >= newest);
  const problems = current.flatMap((version) => ofVersion(model, version, devices));
  if (model.ready || problems.some((problem) => problem.level === "bad")) return problems;
  // A first load is expected. An attempt that failed has a reason.
  if (!model.reason && current.length && current.every(isLoading)) return problems;
  return [{ level: "bad", text: `${model.name} has no version that serves`, detail: model.reason }, ...problems];
}

const isLoading = ({ state, reason }) => (state === "START" || state === "LOADING") && !reason;

function ofVersion(model, version, devices) {
  const name = nameOf(model.name, version.version);
  if (version.code !== "OK") return [{ level: "bad", text: `${name} failed: ${version.code}`, detail: version.reason }];
  if (PENDING[version.state]) {
    return [{ level: "warn", text: `${name} is ${PENDING[version.state]}`, detail: version.reason }];
  }
  if (version.state === "AVAILABLE" && isProblem(version.fallback, devices)) {
    return [{ level: "warn", text: `${name} runs on ${version.device}`, detail: describeFallback(version.fallback) }];
  }
  return [];
}

function ofTraffic(figures) {
  if (!figures.errors_per_s) return [];
  const total = Math.max(figures.requests_per_s ?? 0, figures.errors_per_s);
  const codes = Object.entries(figures.errors).sort(([, one], [, other]) => other - one);
  const faults = codes.reduce((sum, [code, each]) => (FAULTS.has(code) ? sum + each : sum), 0);
  const share = percent(figures.errors_per_s / total);
  const text = `${nameOf(figures.model, figures.version)} answers ${share} of requests with errors`;
  const detail = codes.map(([code, each]) => `${code} ${rate(each)}`).join(", ");
  return [{ level: faults / total >= MUCH_ERROR ? "bad" : "warn", text, detail }];
}

function ofDevice({ name, in_use: inUse, limit }) {
  if (!limit || inUse < NEARLY_FULL * limit) return [];
  return [{ level: "warn", text: `The memory of ${name} is nearly full`, detail: `${percent(inUse / limit)} in use` }];
}
