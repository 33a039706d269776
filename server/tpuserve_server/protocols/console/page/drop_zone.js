// A place for a file: dropped, pasted or chosen.
import { element } from "./element.js";

// `take` is called with a File. Returns the element.
export function dropZone(id, text, accept, take) {
  const chooser = element("input", {
    type: "file",
    id,
    accept,
    onchange: () => chooser.files.length && take(chooser.files[0]),
  });
  const zone = element(
    "div",
    { class: "drop", ondragover: allow, ondragleave: leave, ondrop: drop, onpaste: paste },
    element("label", { for: id }, text),
    chooser,
  );

  function allow(event) {
    event.preventDefault();
    zone.classList.add("over");
  }
  function leave() {
    zone.classList.remove("over");
  }
  function drop(event) {
    event.preventDefault();
    leave();
    choose(event.dataTransfer.files);
  }
  function paste(event) {
    if (event.clipboardData.files.length) event.preventDefault();
    choose(event.clipboardData.files);
  }
  // The file input shows the name, as if the user had chosen the file there.
  function choose(files) {
    if (!files.length) return;
    chooser.files = files;
    take(files[0]);
  }
  return zone;
}
