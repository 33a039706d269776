// Finds variables by name, and opens what is folded for printing. The page reads without it.
const search = document.getElementById("search");
const groups = [...document.querySelectorAll("details")];
const folded = new Map(groups.map((group) => [group, group.open]));

function find(text) {
  for (const group of groups) {
    let found = 0;
    for (const row of group.querySelectorAll("tbody tr")) {
      row.hidden = !row.textContent.toLowerCase().includes(text);
      found += row.hidden ? 0 : 1;
    }
    group.hidden = found === 0;
    group.open = text ? found > 0 : folded.get(group);
  }
}

if (search) {
  search.hidden = false;
  search.addEventListener("input", () => find(search.value.trim().toLowerCase()));
}

let before = [];
addEventListener("beforeprint", () => {
  before = groups.map((group) => group.open);
  groups.forEach((group) => (group.open = true));
});
addEventListener("afterprint", () => groups.forEach((group, number) => (group.open = before[number])));
