// A control for any tensor: JSON.
import { element } from "./element.js";
import { parseTyped } from "./exact_json.js";
import { dtype, shape } from "./figures.js";
import { concrete, count, filled } from "./tensor.js";

// Larger tensors start empty: their zeros are no help.
const MOST_SHOWN = 64;

export class JsonField {
  constructor(spec, id, changed) {
    this.spec = spec;
    this.changed = changed;
    const isSmall = spec.shape && count(concrete(spec.shape)) <= MOST_SHOWN;
    this.text = element("textarea", { id, rows: 4, spellcheck: "false", class: "code" });
    this.text.value = isSmall ? JSON.stringify(filled(spec, "zeros")) : "";
    this.element = element(
      "div",
      null,
      element(
        "label",
        { for: id },
        spec.name,
        " ",
        element("span", { class: "quiet" }, `${dtype(spec.dtype)} ${shape(spec.shape)}, as JSON`),
      ),
      this.text,
    );
  }

  write(value) {
    this.text.value = JSON.stringify(value);
    this.changed();
  }

  read() {
    return parseTyped(this.text.value, `${this.spec.name} is`);
  }
}
