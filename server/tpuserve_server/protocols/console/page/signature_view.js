// One signature of a version: its tensors, batching and batch costs.
import { element } from "./element.js";
import { dtype, milliseconds, plural, shape } from "./figures.js";

export function signatureView(signature) {
  return element(
    "div",
    { class: "signature" },
    element("h4", null, "Signature ", element("code", null, signature.name)),
    element(
      "div",
      { class: "pair" },
      element("div", null, tensors(signature), batching(signature.batching)),
      costs(signature),
    ),
  );
}

function tensors(signature) {
  const kinds = [["input", signature.inputs], ["output", signature.outputs]];
  const rows = kinds.flatMap(([kind, all]) =>
    all.map((tensor) =>
      element(
        "tr",
        null,
        element("td", { class: "quiet" }, kind),
        element("th", { scope: "row" }, element("code", null, tensor.name)),
        element("td", null, element("code", null, `${dtype(tensor.dtype)} ${shape(tensor.shape)}`)),
      )
    )
  );
  return table(`Tensors of ${signature.name}`, ["kind", "name", "dtype and shape"], rows, "tensors");
}

function batching(options) {
  if (!options) return element("p", { class: "quiet" }, "Requests run one at a time, without batching.");
  const limit = options.objective_ms
    ? `latency objective ${milliseconds(options.objective_ms)}`
    : options.timeout_ms
    ? `timeout ${milliseconds(options.timeout_ms)}`
    : "no waiting";
  const queue = options.queued_requests ? `; ${plural(options.queued_requests, "request")} in the queue` : "";
  return element(
    "p",
    null,
    `Batches of at most ${plural(options.max_batch_size, "row")}, ${limit}${queue}.${
      options.batch_sizes.length ? ` Sizes: ${options.batch_sizes.join(", ")}.` : ""
    }`,
  );
}

function costs(signature) {
  if (!signature.costs.length) return null;
  const most = Math.max(...signature.costs.map((cost) => cost.mean_ms));
  const rows = signature.costs.map((cost) => {
    const bar = element("span", { class: "share", "aria-hidden": "true" });
    bar.style.width = `${(cost.mean_ms / most) * 100}%`;
    return element(
      "tr",
      null,
      element("th", { scope: "row" }, sizeOf(cost)),
      element("td", { class: "bar-cell" }, bar),
      element("td", null, milliseconds(cost.mean_ms)),
      element("td", null, milliseconds(cost.mean_ms / cost.bucket)),
    );
  });
  return table(`Batch costs of ${signature.name}`, ["batch", "", "mean time", "a row"], rows, "shares");
}

// Sequences have padded lengths, too.
const sizeOf = (cost) =>
  [plural(cost.bucket, "row"), cost.lengths && `of ${cost.lengths.join(" × ")}`].filter(Boolean).join(" ");

function table(caption, headings, rows, kind) {
  const head = headings.map((name) => (name ? element("th", { scope: "col" }, name) : element("td")));
  return element(
    "table",
    { class: kind },
    element("caption", { class: "hidden" }, caption),
    element("thead", null, element("tr", null, head)),
    element("tbody", null, rows),
  );
}
