// Says what a chart shows where it is pointed at or touched, at once and legibly; the page reads without it.
for (const drawing of document.querySelectorAll(".drawing")) {
  const columns = [...drawing.querySelectorAll(".column")];
  if (!columns.length) continue;
  const texts = new Map();
  for (const column of columns) {
    const title = column.querySelector("title");
    texts.set(column, title.textContent);
    title.remove();
  }
  const box = document.createElement("div");
  box.className = "told-text";
  box.hidden = true;
  drawing.append(box);

  const hide = () => {
    box.hidden = true;
    columns.forEach((column) => column.classList.remove("told"));
  };
  const tell = (event) => {
    const column = event.target.closest(".column");
    if (!column) return hide();
    hide();
    column.classList.add("told");
    box.textContent = texts.get(column);
    box.hidden = false;
    const whole = drawing.getBoundingClientRect();
    const line = column.querySelector("line").getBoundingClientRect();
    const middle = line.left - whole.left;
    const left = middle + 10 + box.offsetWidth > whole.width ? middle - 10 - box.offsetWidth : middle + 10;
    box.style.left = `${Math.max(left, 0)}px`;
    box.style.top = `${line.top - whole.top}px`;
  };
  drawing.addEventListener("pointermove", tell);
  drawing.addEventListener("pointerdown", tell);
  drawing.addEventListener("pointerleave", hide);
}
