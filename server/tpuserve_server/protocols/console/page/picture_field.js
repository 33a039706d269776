// A control for a tensor that is a picture. The preview shows exactly the pixels that are sent.
import { dropZone } from "./drop_zone.js";
import { element, setText } from "./element.js";
import { dtype, shape } from "./figures.js";
import { InputError } from "./input_error.js";
import { decodePicture, SCALES, toPixels, toTensor } from "./picture_pixels.js";
import { recall, remember } from "./remembered.js";
import { findLayout, isFloat } from "./tensor.js";

// The scale of generated floats.
const GENERATED = "0..1";

export class PictureField {
  // `id` is unique in the page. `key` names the input in the browser's storage, `changed` is called after a change.
  constructor(spec, id, key, changed) {
    this.spec = spec;
    this.layout = findLayout(spec);
    this.key = `tpuserve.scale.${key}`;
    this.changed = changed;
    this.pixels = null;
    this.value = null;
    this.scale = element(
      "select",
      { id: `${id}-scale`, onchange: () => this.rescale() },
      [["", { text: "select" }], ...Object.entries(SCALES)].map(([name, { text }]) =>
        element("option", { value: name }, text)
      ),
    );
    // The signature does not tell which values a model of floats was trained with, so the user selects them.
    const kept = recall(this.key);
    this.scale.value = kept in SCALES ? kept : isFloat(spec) ? "" : "0..255";
    this.inverted = element("input", { type: "checkbox", onchange: () => this.convert() });
    this.preview = element("canvas", {
      class: "preview",
      width: 1,
      height: 1,
      role: "img",
      "aria-label": "No picture",
      hidden: true,
    });
    this.note = element("p", { class: "quiet", role: "status" });
    const label = `${spec.name}: drop a picture, paste it, or choose a file`;
    this.element = element(
      "div",
      { class: "picture" },
      element(
        "div",
        null,
        dropZone(id, label, "image/*", (file) => this.take(file)),
        element(
          "div",
          { class: "fields" },
          element("label", null, "Pixel values ", this.scale),
          element("label", { class: "check" }, this.inverted, " Invert"),
        ),
        this.note,
      ),
      this.preview,
    );
    setText(this.note, `${dtype(spec.dtype)} ${shape(spec.shape)}`);
  }

  async take(file) {
    try {
      this.pixels = await decodePicture(file, this.layout);
    } catch {
      setText(this.note, `✕ The browser cannot decode ${file.name} as a picture.`);
      return;
    }
    this.name = file.name;
    this.convert();
  }

  rescale() {
    remember(this.key, this.scale.value);
    this.convert();
  }

  convert() {
    if (!this.pixels) return;
    if (!this.scale.value) {
      this.value = null;
      this.preview.hidden = true;
      setText(this.note, `${this.name}: select the pixel values.`);
      this.changed();
      return;
    }
    this.write(toTensor(this.pixels, this.layout, this.scale.value, this.inverted.checked), this.pixels, this.name);
  }

  // Takes a tensor. Without pixels it is no picture of the user's, and the scale does not change it.
  write(value, pixels = null, name = "generated values") {
    this.value = value;
    this.pixels = pixels;
    const shown = toPixels(value, this.layout, this.scale.value || GENERATED);
    this.preview.width = shown.width;
    this.preview.height = shown.height;
    this.preview.getContext("2d").putImageData(shown, 0, 0);
    this.preview.hidden = false;
    const size = `${shown.width} × ${shown.height} pixels`;
    this.preview.setAttribute("aria-label", `Picture as sent: ${name}, ${size}`);
    setText(
      this.note,
      `${name}, sent as ${size} of ${this.layout.channels === 1 ? "grey" : `${this.layout.channels} channels`}`,
    );
    this.changed();
  }

  read() {
    if (this.value !== null) return this.value;
    throw new InputError(
      this.pixels
        ? `Select the pixel values of ${this.spec.name} that the model was trained with.`
        : `Drop a picture for ${this.spec.name}, or fill in values.`,
    );
  }
}
