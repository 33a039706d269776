// A number field for each element of a short tensor.
import { element } from "./element.js";
import { dtype, shape } from "./figures.js";
import { InputError } from "./input_error.js";
import { concrete, count, flatten, isInteger, reshape } from "./tensor.js";

export class NumberFields {
  constructor(spec, id, changed) {
    this.spec = spec;
    this.changed = changed;
    this.sizes = concrete(spec.shape);
    const total = count(this.sizes);
    this.inputs = Array.from({ length: total }, (_, index) =>
      element("input", {
        type: "number",
        step: isInteger(spec) ? 1 : "any",
        value: 0,
        id: index ? `${id}-${index}` : id,
        "aria-label": total === 1 ? spec.name : `${spec.name}, value ${index + 1}`,
      }));
    this.element = element(
      "div",
      null,
      element(
        "p",
        { class: "field-name" },
        spec.name,
        " ",
        element("span", { class: "quiet" }, `${dtype(spec.dtype)} ${shape(spec.shape)}`),
      ),
      element("div", { class: "numbers-row" }, this.inputs),
    );
  }

  write(value) {
    flatten(value).slice(0, this.inputs.length).forEach((each, index) => (this.inputs[index].value = each));
    this.changed();
  }

  read() {
    return reshape(this.inputs.map((input) => this.readOne(input)), this.sizes);
  }

  readOne(input) {
    const value = input.valueAsNumber;
    if (Number.isNaN(value)) throw new InputError(`Enter a number for ${input.getAttribute("aria-label")}.`);
    if (isInteger(this.spec) && !Number.isInteger(value)) {
      throw new InputError(`Enter a whole number for ${input.getAttribute("aria-label")}.`);
    }
    if (isInteger(this.spec) && !Number.isSafeInteger(value)) {
      throw new InputError(`The browser would round ${input.value}. Send such numbers with another client.`);
    }
    return value;
  }
}
