// Builds DOM elements. Text is never parsed as HTML.
const SVG = "http://www.w3.org/2000/svg";

// Attributes of null or false are omitted. `onclick` and the like are listeners.
export const element = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const drawing = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Replaces the children. An element with the id of the focused one gets the focus again.
export function replace(parent, ...children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement.id : "";
  parent.replaceChildren(...present(children));
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

// Writes only changes, so that screen readers announce a live region only if it changed.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Returns an id without characters that a fragment of a URL would encode.
export const idOf = (...parts) => parts.join("-").replace(/[^\w-]/g, "_");

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...present(children));
  return node;
}

const present = (children) =>
  children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
