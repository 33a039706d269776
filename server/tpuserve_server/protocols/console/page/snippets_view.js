// The request as programs, in tabs.
import { copyButton } from "./copy_button.js";
import { element, replace } from "./element.js";
import { needsFile, REQUEST_FILE, snippets } from "./snippets.js";

export class SnippetsView {
  constructor(container) {
    this.container = container;
    this.chosen = "curl";
    this.fileUrl = null;
  }

  show(request) {
    const all = snippets(request);
    if (!all.some(({ name }) => name === this.chosen)) this.chosen = "curl";
    const panels = all.map((snippet) => this.panel(snippet));
    const tabs = all.map(({ name }) => this.tab(name));
    replace(
      this.container,
      element("h3", null, "The same request"),
      element("div", {
        role: "tablist",
        "aria-label": "Form of the request",
        class: "tabs",
        onkeydown: (event) => this.move(event, all),
      }, tabs),
      panels,
      this.download(request),
    );
  }

  clear() {
    replace(this.container);
  }

  tab(name) {
    const isChosen = name === this.chosen;
    return element("button", {
      type: "button",
      role: "tab",
      id: `tab-${name}`,
      "aria-controls": `panel-${name}`,
      "aria-selected": String(isChosen),
      tabindex: isChosen ? 0 : -1,
      onclick: () => this.choose(name),
    }, name);
  }

  panel({ name, text }) {
    const code = element("pre", { tabindex: 0, "aria-label": `Request as ${name}` }, text);
    return element(
      "div",
      { role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}`, hidden: name !== this.chosen },
      code,
      copyButton(name, text, code),
    );
  }

  choose(name) {
    this.chosen = name;
    for (const tab of this.container.querySelectorAll("[role=tab]")) {
      const isChosen = tab.id === `tab-${name}`;
      tab.setAttribute("aria-selected", String(isChosen));
      tab.tabIndex = isChosen ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !isChosen;
    }
  }

  // Arrow keys choose the tab before or after.
  move(event, all) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const names = all.map(({ name }) => name);
    this.choose(names[(names.indexOf(this.chosen) + step + names.length) % names.length]);
    document.getElementById(`tab-${this.chosen}`).focus();
  }

  download(request) {
    if (this.fileUrl) URL.revokeObjectURL(this.fileUrl);
    this.fileUrl = needsFile(request)
      ? URL.createObjectURL(new Blob([request.body], { type: "application/json" }))
      : null;
    return this.fileUrl &&
      element(
        "p",
        null,
        "The request is long. ",
        element("a", { href: this.fileUrl, download: REQUEST_FILE, id: "request-file" }, `Download ${REQUEST_FILE}`),
        " into the directory of the command.",
      );
  }
}
