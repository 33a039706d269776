// A chart of the last minutes. Its legend has the current values, and its label describes it to screen readers.
import { drawing, element, replace, setText } from "./element.js";
import { MISSING } from "./figures.js";
import { SPAN_S } from "./recent_snapshots.js";

const WIDTH = 330;
const HEIGHT = 112;
const LEFT = 44;
const RIGHT = 6;
const TOP = 10;
const BOTTOM = 22;
// Snapshots come once a second. A longer gap is a lost connection, and the curve has a gap, too.
const LONGEST_GAP_S = 3;

export class TimeChart {
  // `write` writes a value with its unit. `scaleOf` returns the scale of all values. `names` are those of the curves.
  constructor(title, names, write, scaleOf) {
    this.title = title;
    this.write = write;
    this.scaleOf = scaleOf;
    this.names = names;
    this.svg = drawing("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
    this.values = names.map(() => element("b"));
    const keys = names.map((name, style) =>
      element("span", { class: "key" }, sample(style), name, " ", this.values[style])
    );
    const caption = element("figcaption", null, element("h3", null, title), element("div", { class: "legend" }, keys));
    this.figure = element("figure", null, caption, element("div", { class: "drawing" }, this.svg));
  }

  // `curves` are points of time in seconds and value, in the order of `names`.
  show(curves, now) {
    const scale = this.scaleOf(curves.flatMap((points) => points.map(([, value]) => value ?? 0)));
    const place = ([at, value]) => [
      LEFT + (1 - Math.min((now - at) / SPAN_S, 1)) * (WIDTH - LEFT - RIGHT),
      heightOf(scale, value),
    ];
    replace(
      this.svg,
      this.axes(scale),
      curves.map((points, style) => drawing("path", { d: trace(points, place), class: `curve style-${style}` })),
    );
    const current = curves.map((points) => this.write(points.at(-1)?.[1]));
    current.forEach((text, position) => setText(this.values[position], text));
    this.svg.setAttribute("aria-label", this.describe(curves, current));
  }

  axes(scale) {
    const lines = scale.lines.map((value) => {
      const y = heightOf(scale, value);
      return [
        line(y, "grid"),
        drawing("text", { x: LEFT - 6, y: y + 4, class: "end" }, this.write(value).replace(/ ms$|\/s$/, "")),
      ];
    });
    const bottom = HEIGHT - 6;
    return [
      lines,
      line(HEIGHT - BOTTOM, "axis"),
      drawing("text", { x: LEFT, y: bottom, class: "start" }, `${SPAN_S / 60} min ago`),
      drawing("text", { x: WIDTH - RIGHT, y: bottom, class: "end" }, "now"),
    ];
  }

  describe(curves, current) {
    const parts = curves.map((points, position) => {
      const known = points.map(([, value]) => value).filter((value) => value !== null);
      if (!known.length) return `${this.names[position]}: no values`;
      const [low, high] = [Math.min(...known), Math.max(...known)].map(this.write);
      const now = current[position] === MISSING ? "no value now" : `now ${current[position]}`;
      return `${this.names[position]}: ${now}, from ${low} to ${high}`;
    });
    return `${this.title} in the last ${SPAN_S / 60} minutes. ${parts.join(". ")}.`;
  }
}

const heightOf = (scale, value) => HEIGHT - BOTTOM - scale.place(value) * (HEIGHT - TOP - BOTTOM);
const line = (y, kind) => drawing("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y, class: kind });

function trace(points, place) {
  let pen = "M";
  let before = null;
  const steps = [];
  for (const point of points) {
    if (point[1] === null) {
      pen = "M";
      continue;
    }
    if (before !== null && point[0] - before > LONGEST_GAP_S) pen = "M";
    const [x, y] = place(point).map((each) => each.toFixed(1));
    // A lone point is a short line, because a path of one point is invisible.
    steps.push(pen === "M" ? `M${x} ${y}h.8` : `L${x} ${y}`);
    pen = "L";
    before = point[0];
  }
  return steps.join("");
}

function sample(style) {
  const curve = drawing("line", { x1: 0, x2: 22, y1: 5, y2: 5, class: `curve style-${style}` });
  return drawing("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" }, curve);
}
