// The controls of a signature's inputs, or one JSON editor for all of them.
import { element, idOf, replace } from "./element.js";
import { parseTyped } from "./exact_json.js";
import { InputError } from "./input_error.js";
import { JsonField } from "./json_field.js";
import { NumberFields } from "./number_fields.js";
import { PictureField } from "./picture_field.js";
import { controlOf, filled } from "./tensor.js";
import { TextField } from "./text_field.js";

// Classify and Regress take features by name. The signature does not list them.
const EXAMPLES = '[{"feature": 0}]';

export class InputFields {
  // `key` names the signature in the browser's storage.
  constructor(container, signature, key, changed) {
    this.container = container;
    this.takesExamples = takesExamples(signature);
    this.fields = this.takesExamples
      ? []
      : signature.inputs.map((spec) => [spec, makeField(spec, `${key}/${spec.name}`, changed)]);
    this.editor = element("textarea", { id: "try-editor", rows: 8, spellcheck: "false", class: "code" });
    this.editor.value = EXAMPLES;
    this.isJson = this.takesExamples;
    this.draw();
  }

  // Switches between the controls and the editor. Raises InputError if the values do not fit.
  setJson(isJson) {
    if (this.takesExamples || isJson === this.isJson) return;
    if (isJson) this.editor.value = JSON.stringify(this.readable());
    else this.write(this.read());
    this.isJson = isJson;
    this.draw();
  }

  fill(kind) {
    if (this.takesExamples) return;
    const values = Object.fromEntries(this.fields.map(([spec]) => [spec.name, filled(spec, kind)]));
    if (this.isJson) this.editor.value = JSON.stringify(values);
    this.write(values);
  }

  // Returns the values of the inputs by name, or the examples.
  read() {
    if (!this.isJson) return Object.fromEntries(this.fields.map(([spec, field]) => [spec.name, field.read()]));
    return parseTyped(this.editor.value, "The inputs are");
  }

  // Names of the files that inputs contain, by the input's name.
  get files() {
    const withFile = this.isJson ? [] : this.fields.filter(([, field]) => field instanceof TextField && field.file);
    return Object.fromEntries(withFile.map(([spec, field]) => [spec.name, field.file]));
  }

  // Values for the editor. An empty picture does not prevent its use.
  readable() {
    return Object.fromEntries(this.fields.map(([spec, field]) => {
      try {
        return [spec.name, field.read()];
      } catch {
        return [spec.name, []];
      }
    }));
  }

  write(values) {
    for (const [spec, field] of this.fields) {
      if (values[spec.name] === undefined) throw new InputError(`The JSON has no input ${spec.name}.`);
      if (values[spec.name].length !== 0) field.write(values[spec.name]);
    }
  }

  draw() {
    const text = this.takesExamples
      ? "Examples: a list of objects of feature names and values, as JSON"
      : "Inputs by name, as JSON";
    if (this.isJson) {
      replace(
        this.container,
        element("div", { class: "field" }, element("label", { for: "try-editor" }, text), this.editor),
      );
    } else replace(this.container, this.fields.map(([, field]) => element("div", { class: "field" }, field.element)));
  }
}

export const takesExamples = (signature) => /\/(classify|regress)$/.test(signature.method_name);

function makeField(spec, key, changed) {
  const id = idOf("input", spec.name);
  switch (controlOf(spec)) {
    case "picture":
      return new PictureField(spec, id, key, changed);
    case "text":
      return new TextField(spec, id, changed);
    case "fields":
      return new NumberFields(spec, id, changed);
    default:
      return new JsonField(spec, id, changed);
  }
}
