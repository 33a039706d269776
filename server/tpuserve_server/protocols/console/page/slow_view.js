// The slowest requests of the last minutes. Each row unfolds to its stages.
import { copyButton } from "./copy_button.js";
import { element, idOf, replace, setText } from "./element.js";
import { milliseconds } from "./figures.js";
import { longest, stageBar, stageTable } from "./stages.js";

const COLUMNS = 5;

export class SlowView {
  constructor(document) {
    this.rows = document.getElementById("slow-rows");
    this.note = document.getElementById("slow-note");
    this.open = new Set();
  }

  show({ window_s: windowS, requests }) {
    setText(
      this.note,
      requests.length
        ? `Of the last ${windowS / 60} minutes, the slowest first.`
        : `No request ended in the last ${windowS / 60} minutes.`,
    );
    const keys = requests.map(keyOf);
    this.open = new Set(keys.filter((key) => this.open.has(key)));
    replace(this.rows, requests.map((request, position) => this.row(request, keys[position], requests[0].latency_ms)));
  }

  row(request, key, slowestMs) {
    const details = element("tr", { class: "slow-details", id: `${key}-details`, hidden: !this.open.has(key) });
    const button = element("button", {
      type: "button",
      id: key,
      class: "link",
      "aria-expanded": String(this.open.has(key)),
      "aria-controls": `${key}-details`,
      onclick: toggle.bind(this),
    }, milliseconds(request.latency_ms));
    function toggle() {
      details.hidden = !details.hidden;
      button.setAttribute("aria-expanded", String(!details.hidden));
      this.open[details.hidden ? "delete" : "add"](key);
      if (!details.hidden) replace(details, contents(request));
    }
    if (!details.hidden) replace(details, contents(request));
    const isGood = request.code === "OK";
    return [
      element(
        "tr",
        { class: "slow" },
        element("th", { scope: "row" }, button),
        element(
          "td",
          { class: "bar-cell" },
          stageBar(request.stages, slowestMs),
          element("span", { class: "quiet" }, longest(request.stages)),
        ),
        element("td", null, target(request)),
        element("td", { class: isGood ? "quiet" : "bad-text" }, isGood ? "OK" : `✕ ${request.code}`),
        element("td", { class: "quiet" }, timeOf(request.ended)),
      ),
      details,
    ];
  }
}

function contents(request) {
  const ids = [["Request id", request.request_id], ["Trace id", request.trace_id]].filter(([, value]) => value);
  const rows = [
    ["Method", `${request.method} over ${request.protocol === "grpc" ? "gRPC" : "REST"}`],
    ["Signature", request.signature],
    ["Ended", request.ended],
    ["Cached", request.cached && "yes"],
  ].filter(([, value]) => value);
  return element(
    "td",
    { colspan: COLUMNS },
    stageTable(request.stages, `Stages of a request of ${milliseconds(request.latency_ms)}`),
    element(
      "dl",
      null,
      rows.map(([name, value]) => [element("dt", null, name), element("dd", null, value)]),
      ids.map(([name, value]) => {
        const code = element("code", null, value);
        return [element("dt", null, name), element("dd", null, code, " ", copyButton(name.toLowerCase(), value, code))];
      }),
    ),
  );
}

// The stages distinguish requests of one batch, which end together.
const keyOf = ({ ended, latency_ms: latencyMs, request_id: requestId, stages }) =>
  idOf("slow", ended, latencyMs, requestId, ...stages.map((stage) => stage.duration_ms));
const target = (
  request,
) => (request.model ? `${request.model}${request.version === null ? "" : ` ${request.version}`}` : "no model");
const timeOf = (ended) => new Date(ended).toLocaleTimeString([], { hour12: false });
