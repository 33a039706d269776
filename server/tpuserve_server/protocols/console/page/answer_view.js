// A response: the best classes, the outputs, and the time of the request.
import { element, replace } from "./element.js";
import { parse } from "./exact_json.js";
import { milliseconds, number } from "./figures.js";
import { outputsOf, readError, summarize, topClasses } from "./answer.js";
import { readTiming } from "./server_timing.js";
import { stageBar, stageTable } from "./stages.js";
import { count, flatten, sizesOf } from "./tensor.js";

const MOST_CELLS = 64;
const MOST_COLUMNS = 16;
const MOST_RAW = 20000;
const FIRST = 8;
const SMALLEST_SHARE = 0.0001;

// `result` is that of `send`. `labels` is a list, empty for a version without class labels.
export function showAnswer(container, result, signature, labels) {
  const timing = readTiming(result.headers.get("server-timing"));
  const version = result.headers.get("x-tpuserve-model-version");
  const notes = [
    version && `version ${version}`,
    `HTTP ${result.status}`,
    `${milliseconds(result.roundTripMs)} from this browser`,
  ];
  const [first, others] = result.isGood
    ? answered(parse(result.text), signature, labels)
    : [element("p", { class: "bad-text" }, readError(result.text)), null];
  replace(
    container,
    element(
      "h3",
      null,
      "Response ",
      element("span", { class: `badge ${result.isGood ? "good" : "bad"}` }, result.isGood ? "✓ OK" : "✕ error"),
    ),
    element("p", { class: "quiet" }, notes.filter(Boolean).join(" · ")),
    element("div", { class: "pair" }, element("div", null, first), timed(timing, result.roundTripMs)),
    others,
    element(
      "details",
      null,
      element("summary", null, "Raw response"),
      element("pre", { tabindex: 0 }, cut(result.text)),
    ),
  );
  container.hidden = false;
}

// Returns the part beside the time of the request, and the part below: classes come first.
function answered(answer, signature, labels) {
  const classes = topClasses(answer, signature, labels).map(classTable);
  const outputs = outputsOf(answer, signature).map(([name, value]) => outputView(name, value));
  return classes.length ? [classes, outputs] : [outputs, null];
}

function classTable({ name, classes }) {
  const isPart = classes.every(({ score }) => score >= 0 && score <= 1);
  const most = Math.max(...classes.map(({ score }) => Math.abs(score)), 1e-9);
  const rows = classes.map(({ label, score }) => {
    const bar = element("span", { class: "share", "aria-hidden": "true" });
    bar.style.width = `${(isPart ? Math.abs(score) : Math.abs(score) / most) * 100}%`;
    return element(
      "tr",
      null,
      element("th", { scope: "row" }, label),
      element("td", { class: "bar-cell" }, bar),
      element("td", null, isPart ? writeShare(score) : score.toPrecision(4)),
    );
  });
  const head = element(
    "tr",
    null,
    element("th", { scope: "col" }, "class"),
    element("td"),
    element("th", { scope: "col" }, "score"),
  );
  return element(
    "table",
    { class: "shares top" },
    element("caption", null, `Top ${classes.length} of ${name}`),
    element("thead", null, head),
    element("tbody", null, rows),
  );
}

function outputView(name, value) {
  const sizes = sizesOf(value);
  const heading = element("h4", null, element("code", null, name), sizes.length ? ` [${sizes.join(", ")}]` : "");
  const isSmall = count(sizes) <= MOST_CELLS && (sizes.length < 2 || sizes[1] <= MOST_COLUMNS);
  const body = isSmall && sizes.length && sizes.length < 3 ? valueTable(name, value, sizes) : summary(value, sizes);
  return element("div", { class: "output" }, heading, body);
}

function valueTable(name, value, sizes) {
  const rows = sizes.length === 2 ? value : value.map((each) => [each]);
  const head = Array.from(
    { length: sizes[1] ?? 1 },
    (_, column) => element("th", { scope: "col" }, sizes.length === 2 ? String(column) : "value"),
  );
  return element(
    "div",
    { class: "scrolls", tabindex: 0, role: "region", "aria-label": `Values of ${name}` },
    element(
      "table",
      { class: "plain" },
      element("caption", { class: "hidden" }, `Values of ${name}`),
      element("thead", null, element("tr", null, element("th", { scope: "col" }, "row"), head)),
      element(
        "tbody",
        null,
        rows.map((row, index) =>
          element(
            "tr",
            null,
            element("th", { scope: "row" }, String(index)),
            row.map((each) => element("td", null, write(each))),
          )
        ),
      ),
    ),
  );
}

function summary(value, sizes) {
  if (!sizes.length) return element("p", null, write(value));
  const figures = summarize(value);
  const first = flatten(value).slice(0, FIRST).map(write).join(", ");
  const range = figures && `From ${number(figures.least)} to ${number(figures.most)}, mean ${number(figures.mean)}. `;
  return element("p", null, range, `First values: ${first}${count(sizes) > FIRST ? ", …" : ""}`);
}

function timed({ stages, totalMs }, roundTripMs) {
  if (!stages.length) return null;
  const start = stages.at(-1).start_ms + stages.at(-1).duration_ms;
  const all = [...stages, {
    name: "network",
    start_ms: start,
    duration_ms: Math.max(roundTripMs - totalMs, 0),
    reason: "",
  }];
  return element(
    "div",
    null,
    element("h4", null, `Time: ${milliseconds(totalMs)} in the server`),
    stageBar(all),
    stageTable(all, "Time of the request by stage"),
  );
}

function write(value) {
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(3)));
  return typeof value === "string" ? value : JSON.stringify(value);
}

const writeShare = (score) => (score > 0 && score < SMALLEST_SHARE ? `< ${SMALLEST_SHARE}` : score.toFixed(4));
const cut = (text) => (text.length > MOST_RAW ? `${text.slice(0, MOST_RAW)}…` : text);
