// Tensors as nested arrays of JSON: which control fits a tensor of a signature, and values for it.
const FLOATS = new Set(["DT_FLOAT", "DT_DOUBLE", "DT_HALF", "DT_BFLOAT16"]);
const INTEGERS = /^DT_U?INT\d+$/;
const CHANNELS = new Set([1, 3, 4]);
const SMALLEST_PICTURE = 4;
const MOST_FIELDS = 16;
const FREE_SIDE = 224;

export const isFloat = (spec) => FLOATS.has(spec.dtype);
export const isInteger = (spec) => INTEGERS.test(spec.dtype);
export const isString = (spec) => spec.dtype === "DT_STRING";

// Returns "picture", "text", "fields" or "json".
export function controlOf(spec) {
  if (!spec.shape) return "json";
  const sizes = concrete(spec.shape);
  if (isString(spec)) return sizes.every((size) => size === 1) ? "text" : "json";
  if ((isFloat(spec) || isInteger(spec)) && findLayout(spec)) return "picture";
  const inner = spec.shape.slice(1);
  const isShort = count(sizes) <= MOST_FIELDS && !inner.includes(null);
  return isShort && (isFloat(spec) || isInteger(spec)) ? "fields" : "json";
}

// Returns where a picture's axes are, or null for a tensor that looks like no picture.
// A free height or width is 0. `order` names the axes: n rows, h height, w width, c channels.
export function findLayout(spec) {
  const layouts = { 4: ["nhwc", "nchw"], 3: ["hwc", "nhw"] }[spec.shape.length] ?? [];
  for (const order of layouts) {
    const size = (axis) => (order.includes(axis) ? spec.shape[order.indexOf(axis)] : 1);
    const [height, width, channels, rows] = [..."hwcn"].map(size);
    const isSide = (side) => side === null || side >= SMALLEST_PICTURE;
    const isRows = rows === null || rows === 1;
    if (
      isSide(height) && isSide(width) && CHANNELS.has(channels) && isRows &&
      !(order === "nhw" && (height === null || width === null))
    ) {
      return { order, height: height ?? 0, width: width ?? 0, channels };
    }
  }
  return null;
}

// Sizes for an example: one row, and a usual size for other free axes.
export function concrete(shape) {
  const isPicture = shape.length === 4;
  return shape.map((size, axis) => size ?? (isPicture && axis ? FREE_SIDE : 1));
}

export function filled(spec, kind) {
  const sizes = concrete(spec.shape ?? []);
  const make = kind === "zeros" ? zeroOf : randomOf;
  return reshape(Array.from({ length: count(sizes) }, () => make(spec)), sizes);
}

export function reshape(flat, sizes) {
  if (!sizes.length) return flat[0];
  return sizes.slice(1).reduceRight((rows, size) => {
    const grouped = [];
    for (let start = 0; start < rows.length; start += size) grouped.push(rows.slice(start, start + size));
    return grouped;
  }, flat);
}

export const flatten = (value) => (Array.isArray(value) ? value.flat(Infinity) : [value]);
export const count = (sizes) => sizes.reduce((product, size) => product * size, 1);

// Returns the sizes of nested arrays, by their first elements.
export function sizesOf(value) {
  const sizes = [];
  for (let part = value; Array.isArray(part); part = part[0]) sizes.push(part.length);
  return sizes;
}

function zeroOf(spec) {
  if (isString(spec)) return "";
  return spec.dtype === "DT_BOOL" ? false : 0;
}

function randomOf(spec) {
  if (isString(spec)) return Math.random().toString(36).slice(2, 8);
  if (spec.dtype === "DT_BOOL") return Math.random() < 0.5;
  return isInteger(spec) ? Math.floor(Math.random() * 10) : Number(Math.random().toFixed(4));
}
