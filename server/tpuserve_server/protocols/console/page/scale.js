// Scales of a chart's y axis. Each has `place`, which maps a value to 0 (bottom) to 1 (top), and the values of its lines.

// Beyond this ratio of the largest and smallest value, only a logarithmic axis shows differences. Load test pages use it.
const WIDE = 20;
const MOST_LINES = 4;
// Digits of the lines in each power of ten, the finest first.
const DIGITS = [[1, 2, 5], [1, 3], [1]];

// A scale from 0. `least` is the lowest top.
export const linear = (least) => (values) => {
  const top = niceTop(Math.max(least, ...values));
  return { place: (value) => value / top, lines: [0, top / 2, top] };
};

// A logarithmic scale if the values differ widely, so that a peak does not flatten the other values.
export const spread = (least) => (values) => {
  const positive = values.filter((value) => value > 0);
  const [low, high] = [Math.min(...positive), Math.max(...positive)];
  return positive.length && high > WIDE * low ? logarithmic(low / 1.1, high * 1.1) : linear(least)(values);
};

function logarithmic(low, high) {
  return {
    place: (value) => Math.log(Math.max(value, low) / low) / Math.log(high / low),
    lines: linesBetween(low, high),
  };
}

function linesBetween(low, high) {
  const first = Math.floor(Math.log10(low));
  const powers = Array.from({ length: Math.ceil(Math.log10(high)) - first + 1 }, (_, step) => first + step);
  let lines = [];
  for (const digits of DIGITS) {
    lines = powers.flatMap((power) => digits.map((digit) => digit * 10 ** power))
      .filter((value) => value >= low && value <= high);
    if (lines.length <= MOST_LINES) return lines;
  }
  const every = Math.ceil(lines.length / MOST_LINES);
  return lines.filter((_, position) => position % every === 0);
}

function niceTop(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 4, 5, 10].map((step) => step * power).find((top) => top >= most * 0.999);
}
