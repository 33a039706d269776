// The first section: whether the server works, and its problems.
import { element, replace, setText } from "./element.js";
import { age, plural } from "./figures.js";
import { findProblems } from "./problems.js";

export class StatusView {
  constructor(document) {
    this.section = document.getElementById("status");
    this.headline = document.getElementById("headline");
    this.causes = document.getElementById("causes");
    this.server = document.getElementById("server-line");
    this.connection = document.getElementById("connection");
    this.shown = "";
  }

  show(status, snapshot) {
    const problems = findProblems(status, snapshot);
    const level = problems[0]?.level ?? "good";
    this.section.className = `verdict ${level}`;
    setText(this.headline, headline(problems, status));
    const shown = JSON.stringify(problems);
    if (shown !== this.shown) replace(this.causes, problems.map(cause));
    this.shown = shown;
    const { version, uptime_s: uptime, configuration_sha256: sha256 } = status.server;
    const configuration = sha256 ? ` · configuration ${sha256.slice(0, 12)}` : "";
    setText(this.server, `tpuserve ${version} · up ${age(snapshot?.uptime_s ?? uptime)}${configuration}`);
  }

  connected() {
    setText(this.connection, "");
    document.body.classList.remove("stale");
  }

  lost() {
    const time = new Date().toLocaleTimeString([], { hour12: false });
    setText(
      this.connection,
      `✕ No connection to the server since ${time}. The figures are old. The page reconnects by itself.`,
    );
    document.body.classList.add("stale");
  }
}

function headline(problems, status) {
  const bad = problems.filter((problem) => problem.level === "bad").length;
  if (bad) return `✕ ${plural(bad, "problem")}`;
  if (problems.length) return `▲ ${plural(problems.length, "warning")}`;
  const available = status.models.flatMap((model) => model.versions).filter((version) => version.state === "AVAILABLE");
  return `✓ Serving ${plural(status.models.length, "model")}, ${plural(available.length, "version")}`;
}

function cause({ level, text, detail }) {
  const kind = level === "bad" ? "Problem: " : "Warning: ";
  return element(
    "li",
    { class: level },
    element("span", { class: "hidden" }, kind),
    element("b", null, text),
    detail && `: ${detail}`,
  );
}
