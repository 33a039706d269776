// Models and their versions: states with reasons, devices, signatures, batching, costs and reports.
import { element, idOf, replace } from "./element.js";
import { describeFallback, isProblem } from "./fallback.js";
import { bytes, number, percent, plural, seconds } from "./figures.js";
import { nameOf } from "./problems.js";
import { signatureView } from "./signature_view.js";

const MARKS = { good: "✓", bad: "✕", warn: "▲", plain: "" };

export class ModelsView {
  // `control` is called with a model and "load" or "unload", and `tryVersion` with a model and a version.
  constructor(document, control, tryVersion) {
    this.list = document.getElementById("model-list");
    this.control = control;
    this.tryVersion = tryVersion;
    addEventListener("hashchange", () => this.openTarget());
  }

  // `unloaded` are names of models. A version that was shown before stays folded or unfolded, unless it has failed since.
  show(status, unloaded) {
    const before = [...this.list.querySelectorAll("details")].map((one) => [one.id, one.dataset.level, one.open]);
    replace(
      this.list,
      status.models.map((model) => this.model(model, status)),
      unloaded.map((name) => this.unloaded(name)),
      !status.models.length && element("p", { class: "quiet" }, "No model is configured."),
    );
    for (const [id, level, isOpen] of before) {
      const version = document.getElementById(id);
      const hasFailed = version?.dataset.level === "bad" && level !== "bad";
      if (!hasFailed) version?.toggleAttribute("open", isOpen);
    }
    this.openTarget();
  }

  // A link to a version also unfolds it.
  openTarget() {
    const target = document.getElementById(location.hash.slice(1));
    if (target?.tagName === "DETAILS") target.open = true;
  }

  model(model, status) {
    const labels = Object.entries(model.labels).map(([label, version]) => `${label} → ${version}`);
    const heading = element(
      "h3",
      null,
      model.name,
      " ",
      badge(model.ready ? "good" : "bad", model.ready ? "ready" : "not ready"),
    );
    const facts = [
      model.kind === "ensemble" && "ensemble",
      plural(model.versions.length, "version"),
      labels.length && `labels ${labels.join(", ")}`,
    ];
    return element(
      "article",
      { class: "model", "aria-label": model.name },
      element(
        "div",
        { class: "model-head" },
        element("div", null, heading, element("p", { class: "quiet" }, facts.filter(Boolean).join(" · "))),
        status.may_control &&
          element("div", { class: "buttons" }, this.button(model.name, "load"), this.button(model.name, "unload")),
      ),
      model.versions.map((version) => this.version(model, version, status.devices)),
    );
  }

  unloaded(name) {
    return element(
      "article",
      { class: "model model-head", "aria-label": name },
      element("h3", null, name, " ", badge("plain", "unloaded")),
      element("div", { class: "buttons" }, this.button(name, "load")),
    );
  }

  button(model, action) {
    const name = action === "load" ? "Load" : "Unload";
    return element("button", {
      type: "button",
      class: "small",
      id: idOf(action, model),
      "aria-label": `${name} ${model}`,
      onclick: () => this.control(model, action),
    }, name);
  }

  version(model, version, devices) {
    const level = levelOf(version, devices);
    const summary = element(
      "summary",
      null,
      element("span", { class: "version-name" }, `Version ${version.version}`),
      " ",
      badge(level, version.state.toLowerCase()),
      element("span", { class: "quiet" }, summaryOf(version)),
    );
    const reason = version.reason &&
      element(
        "p",
        { class: level === "bad" ? "bad-text" : "quiet" },
        `${version.code === "OK" ? "" : `${version.code}: `}${version.reason}`,
      );
    return element(
      "details",
      { id: idOf("version", model.name, version.version), class: "version", "data-level": level, open: level === "bad" },
      summary,
      reason,
      facts(version),
      version.state === "AVAILABLE" && element(
        "p",
        null,
        element("button", {
          type: "button",
          id: idOf("try", model.name, version.version),
          "aria-label": `Try a request with ${nameOf(model.name, version.version)}`,
          onclick: () => this.tryVersion(model.name, version.version),
        }, "Try a request"),
      ),
      version.signatures.map(signatureView),
    );
  }
}

function levelOf(version, devices) {
  if (version.code !== "OK") return "bad";
  if (version.state === "AVAILABLE") return isProblem(version.fallback, devices) ? "warn" : "good";
  return version.state === "END" ? "plain" : "warn";
}

function badge(level, text) {
  return element("span", { class: `badge ${level}` }, `${MARKS[level]} ${text}`.trim());
}

function summaryOf(version) {
  const parts = [
    version.device,
    version.load_s && `loaded in ${seconds(version.load_s)}`,
    plural(version.signatures.length, "signature"),
  ];
  return ` ${parts.filter(Boolean).join(" · ")}`;
}

function facts(version) {
  const { cache } = version;
  const looked = cache && cache.hits + cache.misses;
  const rows = [
    ["Device", [version.device, version.fallback && describeFallback(version.fallback)].filter(Boolean).join(": ")],
    ["Load time", version.load_s && seconds(version.load_s)],
    [
      "Warm-up",
      version.warmup_records && `${plural(version.warmup_records, "request")} in ${seconds(version.warmup_s)}`,
    ],
    ["Metrics", version.evaluation && metricsOf(version.evaluation)],
    ["Class labels", version.class_labels && number(version.class_labels)],
    [
      "Response cache",
      cache &&
      `${looked ? percent(cache.hits / looked) : "0 %"} of ${plural(looked, "request")} were hits; ${
        bytes(cache.size_bytes)
      }`,
    ],
    ["Reports", version.reports.length && version.reports.map(reportLink)],
  ].filter(([, value]) => value);
  return element("dl", null, rows.map(([name, value]) => [element("dt", null, name), element("dd", null, value)]));
}

function metricsOf({ file, rows, sha256, metrics }) {
  const lines = metrics.map(({ metric, value, operator, bound, signature, output }) => {
    const shown = value === null ? "not finite" : Number(value.toPrecision(6));
    const of = { class: "quiet", title: `${signature}/${output}` };
    return element("div", null, `${metric} ${shown} `, element("span", of, `expected ${operator} ${bound}`));
  });
  const source = element("div", { class: "quiet", title: `sha256 ${sha256}` }, `${plural(rows, "row")} of ${file}`);
  return [...lines, source];
}

function reportLink({ title, href, written_at: writtenAt }) {
  const link = element("a", { href: href.replace(/^\//, "") }, title);
  return element("div", null, link, writtenAt && element("span", { class: "quiet" }, ` ${dateOf(writtenAt)}`));
}

const dateOf = (time) => new Date(time).toLocaleString([], { dateStyle: "medium", timeStyle: "short", hour12: false });
