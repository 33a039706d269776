// Pixels of a picture as a tensor, and a tensor as pixels.
import { flatten } from "./tensor.js";

// Pixel values by the name of the scale, of a byte.
export const SCALES = {
  "0..255": { text: "0 to 255", apply: (byte) => byte, revert: (value) => value },
  "0..1": { text: "0 to 1", apply: (byte) => byte / 255, revert: (value) => value * 255 },
  "-1..1": { text: "−1 to 1", apply: (byte) => byte / 127.5 - 1, revert: (value) => (value + 1) * 127.5 },
};
const LONGEST_SIDE = 1024;
const DIGITS = 6;

// Decodes a file and scales it to the layout. Returns ImageData. Raises if the browser cannot decode the file.
export async function decodePicture(file, layout) {
  const picture = await createImageBitmap(file, { imageOrientation: "none", colorSpaceConversion: "none" });
  const shrink = Math.min(1, LONGEST_SIDE / Math.max(picture.width, picture.height));
  const [ownWidth, ownHeight] = [picture.width, picture.height].map((side) => Math.max(1, Math.round(side * shrink)));
  const [width, height] = [layout.width || ownWidth, layout.height || ownHeight];
  const context = new OffscreenCanvas(width, height).getContext("2d");
  context.imageSmoothingQuality = "high";
  if (layout.channels !== 4) {
    context.fillStyle = "#fff"; // under transparent pixels
    context.fillRect(0, 0, width, height);
  }
  context.drawImage(picture, 0, 0, width, height);
  return context.getImageData(0, 0, width, height);
}

// Returns nested arrays in the order of the layout.
export function toTensor(pixels, layout, scale, isInverted) {
  const { apply } = SCALES[scale];
  const convert = (byte) => Number(apply(isInverted ? 255 - byte : byte).toPrecision(DIGITS));
  const channel = (x, y, number) => {
    const start = (y * pixels.width + x) * 4;
    const [red, green, blue, alpha] = pixels.data.subarray(start, start + 4);
    if (layout.channels === 1) return convert(Math.round(0.299 * red + 0.587 * green + 0.114 * blue));
    return number === 3 ? Number(apply(alpha).toPrecision(DIGITS)) : convert([red, green, blue][number]);
  };
  const sizes = { n: 1, h: pixels.height, w: pixels.width, c: layout.channels };
  const build = (axes, place) => {
    if (!axes) return channel(place.w, place.h, place.c ?? 0);
    return Array.from({ length: sizes[axes[0]] }, (_, index) => build(axes.slice(1), { ...place, [axes[0]]: index }));
  };
  return build(layout.order, {});
}

// Returns ImageData of a tensor, as `toTensor` makes it.
export function toPixels(tensor, layout, scale) {
  const picture = layout.order.startsWith("n") ? tensor[0] : tensor;
  const isFirst = layout.order === "nchw";
  const [height, width] = isFirst ? [picture[0].length, picture[0][0].length] : [picture.length, picture[0].length];
  const pixels = new ImageData(width, height);
  const values = flatten(picture);
  for (let place = 0; place < width * height; place += 1) {
    const value = (number) =>
      SCALES[scale].revert(values[isFirst ? number * width * height + place : place * layout.channels + number]);
    const colors = layout.channels === 1 ? [value(0), value(0), value(0)] : [value(0), value(1), value(2)];
    pixels.data.set([...colors, layout.channels === 4 ? value(3) : 255], place * 4);
  }
  return pixels;
}
