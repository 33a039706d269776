/* Ranks the results of the site's search: guides before look-up pages, decisions last. Sphinx ships it with the search. */
const WEIGHTS = [
  ["docs/explanation/decisions/", 0.2],
  ["docs/tutorials/", 1.6],
  ["docs/how-to/", 1.5],
  ["docs/", 1],
];
// The changelog, and READMEs of the repository's folders.
const OTHERS_WEIGHT = 0.4;
// For a page whose title is the query. A longer title gets a part of it.
const TITLE_BONUS = 30;

var Scorer = {
  score: ([page, title, anchor, , score]) => {
    const query = new URLSearchParams(location.search).get("q").toLowerCase().trim();
    const bonus = !anchor && title.toLowerCase().includes(query) ? TITLE_BONUS * query.length / title.length : 0;
    const weight = WEIGHTS.find(([folder]) => page.startsWith(folder))?.[1] ?? OTHERS_WEIGHT;
    return (score + bonus) * weight;
  },
  // The rest are Sphinx's own values.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
