// A control for one string: text, or the bytes of a file.
import { dropZone } from "./drop_zone.js";
import { element, replace, setText } from "./element.js";
import { bytes, shape } from "./figures.js";
import { flatten, reshape } from "./tensor.js";

const BLOCK = 0x8000;

export class TextField {
  constructor(spec, id, changed) {
    this.spec = spec;
    this.changed = changed;
    this.encoded = null;
    this.file = null;
    this.text = element("textarea", { id, rows: 2, oninput: () => this.forgetFile() });
    this.note = element("p", { class: "quiet", role: "status" }, `string ${shape(spec.shape)}`);
    this.preview = element("div");
    this.element = element(
      "div",
      { class: "picture" },
      element(
        "div",
        null,
        element("label", { for: id }, `${spec.name}: text`),
        this.text,
        dropZone(`${id}-file`, "or the bytes of a file: drop, paste or choose it", null, (file) => this.take(file)),
        this.note,
      ),
      this.preview,
    );
  }

  async take(file) {
    this.encoded = encode(new Uint8Array(await file.arrayBuffer()));
    this.file = file.name;
    this.text.value = "";
    setText(this.note, `${file.name}, ${bytes(file.size)}, sent as it is`);
    if (file.type.startsWith("image/")) {
      const picture = element("img", {
        class: "preview",
        alt: `Picture as sent: ${file.name}`,
        src: URL.createObjectURL(file),
      });
      picture.addEventListener("load", () => URL.revokeObjectURL(picture.src));
      replace(this.preview, picture);
    }
    this.changed();
  }

  forgetFile() {
    if (this.file === null) return;
    this.encoded = null;
    this.file = null;
    setText(this.note, `string ${shape(this.spec.shape)}`);
    replace(this.preview);
  }

  write(value) {
    this.forgetFile();
    const [first] = flatten(value);
    if (first?.b64 === undefined) this.text.value = first ?? "";
    else this.encoded = first.b64;
    this.changed();
  }

  read() {
    const value = this.encoded === null ? this.text.value : { b64: this.encoded };
    return reshape([value], this.spec.shape.map(() => 1));
  }
}

// Returns base64. A call with all bytes would exceed the limit of arguments.
function encode(all) {
  const parts = [];
  for (let start = 0; start < all.length; start += BLOCK) {
    parts.push(String.fromCharCode(...all.subarray(start, start + BLOCK)));
  }
  return btoa(parts.join(""));
}
