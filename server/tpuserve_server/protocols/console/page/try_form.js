// The form to try a request: it is made from the signature, and shows the response and the request as programs.
import { showAnswer } from "./answer_view.js";
import { element, replace, setText } from "./element.js";
import { InputFields, takesExamples } from "./input_fields.js";
import { InputError } from "./input_error.js";
import { nameOf } from "./problems.js";
import { absolute, modelUrl, readLabels, send } from "./server_api.js";
import { SnippetsView } from "./snippets_view.js";

export class TryForm {
  constructor(document) {
    const find = (name) => document.getElementById(`try-${name}`);
    [this.form, this.versions, this.signatures, this.inputs] = ["form", "version", "signature", "inputs"].map(find);
    [this.message, this.answer, this.json] = ["message", "answer", "json"].map(find);
    this.snippets = new SnippetsView(find("snippets"));
    this.labels = new Map();
    this.listed = null;
    this.form.addEventListener("submit", (event) => this.submit(event));
    this.form.addEventListener("input", (event) => event.target !== this.json && this.changed());
    this.versions.addEventListener("change", () => this.pickVersion());
    this.signatures.addEventListener("change", () => this.pickSignature());
    this.json.addEventListener("change", () => this.switchEditor());
    find("zeros").addEventListener("click", () => this.fill("zeros"));
    find("random").addEventListener("click", () => this.fill("random"));
  }

  // Keeps the form as it is unless the available versions or their signatures have changed.
  show(status) {
    this.grpc = grpcTarget(status);
    const available = status.models.flatMap((model) =>
      model.versions.filter((one) => one.state === "AVAILABLE" && one.signatures.length).map((
        version,
      ) => [model.name, version])
    );
    const listed = JSON.stringify(
      available.map((
        [model, version],
      ) => [model, version.version, version.signatures.map(({ inputs, name }) => [name, inputs])]),
    );
    if (listed === this.listed) return;
    const isNew = this.listed === null || !this.signature;
    const before = this.versions.value;
    this.listed = listed;
    this.available = new Map(
      available.map(([model, version]) => [nameOf(model, version.version), { model, ...version }]),
    );
    replace(this.versions, [...this.available.keys()].map((name) => element("option", { value: name }, name)));
    if (!isNew && this.available.has(before)) this.versions.value = before;
    else this.pickVersion();
  }

  choose(model, version) {
    this.versions.value = nameOf(model, version);
    this.pickVersion();
    location.hash = "try";
    this.versions.focus();
  }

  pickVersion() {
    this.version = this.available.get(this.versions.value);
    const names = (this.version?.signatures ?? []).map((signature) => signature.name);
    replace(this.signatures, names.map((name) => element("option", { value: name }, name)));
    if (names.includes("serving_default")) this.signatures.value = "serving_default";
    this.pickSignature();
  }

  pickSignature() {
    this.signature = this.version?.signatures.find((signature) => signature.name === this.signatures.value);
    this.answer.hidden = true;
    this.fields = null;
    this.json.checked = false;
    if (!this.signature) {
      setText(this.message, "No version is available.");
      return replace(this.inputs);
    }
    setText(this.message, "");
    const key = `${this.version.model}/${this.signature.name}`;
    this.json.disabled = takesExamples(this.signature);
    this.fields = new InputFields(this.inputs, this.signature, key, () => this.changed());
    this.changed();
  }

  fill(kind) {
    this.fields?.fill(kind);
  }

  switchEditor() {
    try {
      this.fields?.setJson(this.json.checked);
      setText(this.message, "");
    } catch (error) {
      this.json.checked = !this.json.checked;
      setText(this.message, `✕ ${error.message}`);
    }
  }

  // The programs follow the inputs. They disappear while the inputs are incomplete.
  changed() {
    if (!this.fields) return;
    try {
      this.snippets.show(this.request());
      setText(this.message, "");
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
      this.snippets.clear();
    }
  }

  request() {
    const { signature, version, fields } = this;
    const values = fields.read();
    const method = takesExamples(signature) ? signature.method_name.split("/").at(-1) : "predict";
    const body = JSON.stringify({
      signature_name: signature.name,
      [method === "predict" ? "inputs" : "examples"]: values,
    });
    const url = modelUrl(version.model, version.version, method);
    return {
      model: version.model,
      version: version.version,
      signature,
      method,
      values,
      files: fields.files,
      body,
      url: absolute(url),
      restAddress: absolute(".").replace(/\/$/, ""),
      grpc: this.grpc,
    };
  }

  async submit(event) {
    event.preventDefault();
    const { fields } = this;
    if (!fields) return;
    try {
      const request = this.request();
      setText(this.message, "Sending");
      const [result, labels] = await Promise.all([send(request.url, request.body), this.readLabels()]);
      if (this.fields !== fields) return; // The user has chosen another version or signature.
      showAnswer(this.answer, result, request.signature, labels);
      setText(this.message, "");
      this.answer.focus({ preventScroll: true });
      this.answer.scrollIntoView({ block: "nearest" });
    } catch (error) {
      setText(
        this.message,
        `✕ ${error instanceof InputError ? error.message : `Cannot reach the server. ${error.message}`}`,
      );
    }
  }

  async readLabels() {
    const { model, version, class_labels: total } = this.version;
    const key = this.versions.value;
    if (total && !this.labels.has(key)) this.labels.set(key, await readLabels(model, version).catch(() => []));
    return this.labels.get(key) ?? [];
  }
}

// The server often listens on all addresses, but the browser has reached it at this host. Returns null without a port.
function grpcTarget({ server: { addresses } }) {
  const port = addresses.grpc?.split(":").at(-1);
  return port ? { address: `${location.hostname}:${port}`, tls: addresses.tls } : null;
}
