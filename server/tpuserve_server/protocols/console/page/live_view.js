// Live figures: tiles of the whole server, a table by version, and charts of one version.
import { element, idOf, replace, setText } from "./element.js";
import { bytes, milliseconds, number, percent, plural, rate } from "./figures.js";
import { nameOf } from "./problems.js";
import { largest, mean, sum } from "./recent_snapshots.js";
import { linear, spread } from "./scale.js";
import { TimeChart } from "./time_chart.js";

// Rows of three on a phone.
const COLUMNS = [
  ["rate", (one) => rate(one.requests_per_s)],
  ["errors", (one) => rate(one.errors_per_s)],
  ["queue", (one) => number(one.queued_requests)],
  ["p50", (one) => milliseconds(one.p50_ms)],
  ["p90", (one) => milliseconds(one.p90_ms)],
  ["p99", (one) => milliseconds(one.p99_ms)],
  ["batch rows", (one) => number(one.batch_rows)],
  ["padding", (one) => percent(one.padding)],
  ["busy", (one) => percent(one.busy)],
];
const CHARTS = [
  ["Requests", ["requests", "errors"], ["requests_per_s", "errors_per_s"], rate, linear(1)],
  ["Latency", ["p50", "p90", "p99"], ["p50_ms", "p90_ms", "p99_ms"], milliseconds, spread(1)],
  ["Queue", ["requests", "rows"], ["queued_requests", "queued_rows"], number, linear(2)],
  ["Batch", ["rows", "requests"], ["batch_rows", "batch_requests"], number, linear(2)],
  ["Padding and device time", ["padding", "busy"], ["padding", "busy"], percent, linear(1)],
];
// CPU of the whole server, which completes the grid of charts.
const CPU = ["CPU of the server", ["cores"], number, linear(1)];

export class LiveView {
  constructor(document, recent) {
    this.recent = recent;
    this.tiles = document.getElementById("tiles");
    this.rows = document.getElementById("live-rows");
    this.choice = document.getElementById("chart-version");
    this.charts = CHARTS.map(([title, names, , write, scaleOf]) => new TimeChart(title, names, write, scaleOf));
    this.cpu = new TimeChart(...CPU);
    this.chosen = null;
    this.drawn = null;
    this.texts = new Map();
    this.listed = null;
    document.getElementById("charts").append(...[...this.charts, this.cpu].map((chart) => chart.figure));
    this.choice.addEventListener("change", () => {
      this.chosen = this.choice.value;
      this.drawCharts();
    });
  }

  // Shows the newest snapshot.
  show() {
    const snapshot = this.recent.newest;
    this.showTiles(snapshot);
    this.list(snapshot.versions);
    snapshot.versions.forEach((one) =>
      COLUMNS.forEach(([name, write]) => setText(this.texts.get(keyOf(one) + name), write(one)))
    );
    this.drawCharts();
  }

  showTiles({ versions, devices, process, in_flight: inFlight }) {
    const errors = sum(versions.map((one) => one.errors_per_s));
    const device = devices.length
      ? [["device busy", percent(mean(devices.map((one) => one.busy))), memoryOf(devices)]]
      : [];
    const tiles = [
      [
        "requests",
        rate(sum(versions.map((one) => one.requests_per_s))),
        errors ? `✕ ${rate(errors)} errors` : "no errors",
        errors > 0,
      ],
      ["p99", milliseconds(largest(versions.map((one) => one.p99_ms))), "slowest version"],
      [
        "queue",
        number(sum(versions.map((one) => one.queued_requests))),
        plural(sum(versions.map((one) => one.queued_rows)), "row"),
      ],
      [
        "in flight",
        number(sum([inFlight.grpc, inFlight.rest])),
        `gRPC ${number(inFlight.grpc)}, REST ${number(inFlight.rest)}`,
      ],
      ...device,
      ["CPU cores", number(process.cpu), `${bytes(process.rss_bytes)} memory`],
    ];
    replace(
      this.tiles,
      tiles.map(([name, value, note, isBad]) =>
        element(
          "div",
          null,
          element("dt", { class: "name" }, name),
          element(
            "dd",
            null,
            element("b", null, value),
            element("span", { class: isBad ? "bad-text" : "quiet" }, note),
          ),
        )
      ),
    );
  }

  // Makes the rows and the choices again only if the versions have changed.
  list(versions) {
    const keys = JSON.stringify(versions.map(keyOf));
    if (keys === this.listed) return;
    this.listed = keys;
    this.texts.clear();
    replace(this.rows, versions.map((one) => this.row(one)));
    replace(
      this.choice,
      versions.map((one) => element("option", { value: keyOf(one) }, nameOf(one.model, one.version))),
    );
    if (!versions.length) {
      replace(this.rows, element("tr", null, element("td", { colspan: COLUMNS.length + 1 }, "No version is loaded.")));
    }
  }

  row(one) {
    const cells = COLUMNS.map(([name, write]) => {
      const cell = element("td", { "data-what": name }, write(one));
      this.texts.set(keyOf(one) + name, cell);
      return cell;
    });
    const link = element("a", { href: `#${idOf("version", one.model, one.version)}` }, nameOf(one.model, one.version));
    return element("tr", null, element("th", { scope: "row" }, link), cells);
  }

  // Until the user chooses, the charts are those of the version with the most requests now, or else before.
  drawCharts() {
    const { versions, at } = this.recent.newest ?? { versions: [] };
    this.cpu.show([this.recent.ofServer((snapshot) => snapshot.process.cpu)], at);
    const chosen = versions.find((one) => keyOf(one) === this.chosen) ?? busiest(versions, this.drawn);
    if (!chosen) return;
    this.drawn = keyOf(chosen);
    if (document.activeElement !== this.choice) this.choice.value = keyOf(chosen);
    CHARTS.forEach(([, , fields], position) => {
      this.charts[position].show(fields.map((field) => this.recent.ofVersion(chosen.model, chosen.version, field)), at);
    });
  }
}

const keyOf = (one) => JSON.stringify([one.model, one.version]);

// The version that serves and has the most requests, then the one that was drawn `before`, then the first.
function busiest(versions, before) {
  const isBefore = (one) => one.state === "AVAILABLE" && keyOf(one) === before;
  const order = (one) => [one.state === "AVAILABLE", one.requests_per_s ?? 0, isBefore(one)].map(Number);
  return versions.reduce((best, one) => (isGreater(order(one), order(best)) ? one : best), versions[0]);
}

// Compares lists of numbers of the same length by their first difference.
function isGreater(one, other) {
  const place = one.findIndex((value, position) => value !== other[position]);
  return place >= 0 && one[place] > other[place];
}

function memoryOf(devices) {
  const known = devices.filter((device) => device.limit);
  if (!known.length) return devices.length === 1 ? devices[0].name : `${devices.length} devices`;
  return `${bytes(sum(known.map((one) => one.in_use)))} of ${bytes(sum(known.map((one) => one.limit)))}`;
}
