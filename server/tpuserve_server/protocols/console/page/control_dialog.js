// Loads and unloads models after a confirmation.
import { setText } from "./element.js";
import { control } from "./server_api.js";

const QUESTIONS = {
  load: ["Load", "The server reads the model's versions again and loads them."],
  unload: [
    "Unload",
    "Its versions stop serving when their requests have ended. Clients get errors until the model is loaded again.",
  ],
};

export class ControlDialog {
  constructor(document) {
    this.dialog = document.getElementById("control-dialog");
    this.title = document.getElementById("control-title");
    this.text = document.getElementById("control-text");
    this.confirm = document.getElementById("control-confirm");
    this.result = document.getElementById("control-result");
    this.dialog.addEventListener("close", () => this.dialog.returnValue === "confirm" && this.run());
  }

  ask(model, action) {
    this.request = [model, action];
    const [name, text] = QUESTIONS[action];
    setText(this.title, `${name} ${model}?`);
    setText(this.text, text);
    setText(this.confirm, name);
    this.dialog.returnValue = "";
    this.dialog.showModal();
  }

  async run() {
    const [model, action] = this.request;
    setText(this.result, `Request to ${action} ${model} sent.`);
    try {
      await control(model, action);
      setText(this.result, `The server accepted the request to ${action} ${model}.`);
    } catch (error) {
      setText(this.result, `✕ Cannot ${action} ${model}. ${error.message}`);
    }
  }
}
