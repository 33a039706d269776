// Numbers with units, as text. A missing number is a dash.
export const MISSING = "–";

const DIGITS = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const TENTHS = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const AGE_UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

export const number = (value) => (known(value) ? (Math.abs(value) >= 100 ? WHOLE : DIGITS).format(value) : MISSING);
export const rate = (value) => (known(value) ? `${number(value)}/s` : MISSING);
export const percent = (value) => (known(value) ? `${(value < 0.1 ? TENTHS : WHOLE).format(value * 100)} %` : MISSING);

export function milliseconds(value) {
  if (!known(value)) return MISSING;
  return value >= 1000 ? `${number(value / 1000)} s` : `${number(value)} ms`;
}

export const seconds = (value) => (known(value) ? milliseconds(value * 1000) : MISSING);

export function bytes(value) {
  if (!known(value)) return MISSING;
  let unit = 0;
  while (value >= 1024 && unit < BYTE_UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${number(value)} ${BYTE_UNITS[unit]}`;
}

// A duration of whole units, the two largest ones: "3 d 4 h".
export function age(value) {
  if (!known(value)) return MISSING;
  let rest = Math.max(0, Math.floor(value));
  const parts = [];
  for (const [size, unit] of AGE_UNITS) {
    const whole = Math.floor(rest / size);
    rest -= whole * size;
    if (whole || (parts.length === 0 && unit === "s")) parts.push(`${whole} ${unit}`);
    else if (parts.length) break;
  }
  return parts.slice(0, 2).join(" ");
}

export const plural = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

// A shape as TensorFlow writes it: null is an unknown size, and a null shape an unknown rank.
export const shape = (sizes) => (sizes === null ? "any shape" : `[${sizes.map((size) => size ?? "?").join(", ")}]`);
export const dtype = (name) => name.replace(/^DT_/, "").toLowerCase();
