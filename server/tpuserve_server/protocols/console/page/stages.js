// The stages of a request: a bar, and a table with their reasons.
import { element } from "./element.js";
import { milliseconds, percent } from "./figures.js";

// Each stage has a colour and a pattern of its own; see console.css.
const MEANINGS = {
  receive: "until the message was complete",
  decode: "from the message to the queue",
  queue: "until the batch left the queue",
  batch: "until the rows were joined and the device was free",
  execute: "on the device",
  resume: "until the event loop continued with the request",
  encode: "from the result to the response",
  cache: "in the response cache",
  network: "between this browser and the server",
};

// `stages` have `name`, `start_ms`, `duration_ms` and `reason`.
// `scale` is the duration of the whole width, in milliseconds: that of all stages by default.
export function stageBar(stages, scale) {
  const total = totalOf(stages);
  const parts = stages.filter((stage) => stage.duration_ms > 0).map((stage) => {
    const part = element("span", {
      class: `stage ${kindOf(stage.name)}`,
      title: `${stage.name} ${milliseconds(stage.duration_ms)}`,
    });
    part.style.flexGrow = stage.duration_ms / total;
    return part;
  });
  const bar = element("div", { class: "stages", role: "img", "aria-label": describe(stages) }, parts);
  if (scale) bar.style.width = `${Math.min(total / scale, 1) * 100}%`;
  return bar;
}

export function stageTable(stages, caption) {
  const total = totalOf(stages);
  const rows = stages.map((stage) =>
    element(
      "tr",
      null,
      element(
        "th",
        { scope: "row" },
        element("span", { class: `swatch ${kindOf(stage.name)}`, "aria-hidden": "true" }),
        stage.name,
      ),
      element("td", null, milliseconds(stage.duration_ms)),
      element("td", null, percent(stage.duration_ms / total)),
      element(
        "td",
        { class: "words" },
        MEANINGS[kindOf(stage.name)] ?? "",
        stage.reason && element("div", { class: "quiet" }, stage.reason),
      ),
    )
  );
  const head = ["stage", "time", "share", "meaning and reason"].map((name) => element("th", { scope: "col" }, name));
  return element(
    "table",
    { class: "stage-table" },
    element("caption", { class: "hidden" }, caption),
    element("thead", null, element("tr", null, head)),
    element("tbody", null, rows),
  );
}

// The longest stage as text, so that the bar's colours are not the only carrier.
export function longest(stages) {
  if (!stages.length) return "";
  const stage = stages.reduce((one, other) => (other.duration_ms > one.duration_ms ? other : one));
  return `${stage.name} ${percent(stage.duration_ms / totalOf(stages))}`;
}

const totalOf = (stages) => Math.max(stages.reduce((total, stage) => total + stage.duration_ms, 0), 1e-9);
const describe = (stages) =>
  `Stages: ${stages.map((stage) => `${stage.name} ${milliseconds(stage.duration_ms)}`).join(", ")}`;

// Stages of a request that ran several times have a prefix: step2.queue.
const kindOf = (name) => name.split(".").at(-1);
