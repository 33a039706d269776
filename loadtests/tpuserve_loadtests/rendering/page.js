// Shows the tooltip of the column under the pointer. Without scripts, the titles of the columns serve as tooltips.
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
  box.className = "tooltip-text";
  box.hidden = true;
  drawing.append(box);

  const hide = () => {
    box.hidden = true;
    columns.forEach((column) => column.classList.remove("active"));
  };
  const show = (event) => {
    const column = event.target.closest(".column");
    if (!column) return hide();
    hide();
    column.classList.add("active");
    box.textContent = texts.get(column);
    box.hidden = false;
    const frame = drawing.getBoundingClientRect();
    const line = column.querySelector("line").getBoundingClientRect();
    const middle = line.left - frame.left;
    const left = middle + 10 + box.offsetWidth > frame.width ? middle - 10 - box.offsetWidth : middle + 10;
    box.style.left = `${Math.max(left, 0)}px`;
    box.style.top = `${line.top - frame.top}px`;
  };
  drawing.addEventListener("pointermove", show);
  drawing.addEventListener("pointerdown", show);
  drawing.addEventListener("pointerleave", hide);
}
