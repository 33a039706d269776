// A button that copies text. Without the clipboard, which needs HTTPS or localhost, it selects the text.
import { element } from "./element.js";

const SHOWN_MS = 1500;

export function copyButton(name, text, shownIn) {
  const button = element(
    "button",
    { type: "button", class: "small", "aria-label": `Copy ${name}`, onclick: copy },
    "Copy",
  );
  async function copy() {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(shownIn ?? button.previousElementSibling);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), SHOWN_MS);
  }
  return button;
}
