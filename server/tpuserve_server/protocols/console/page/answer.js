// A response as values: outputs by name, classes and errors.
import { parse } from "./exact_json.js";
import { flatten, isFloat, sizesOf } from "./tensor.js";

const MOST_CLASSES = 5;
const MOST_ROWS = 4;
const SCORE_NAMES = /score|prob|pred|logit|softmax|class/i;

export function readError(text) {
  try {
    return parse(text).error ?? text;
  } catch {
    return text;
  }
}

// Returns pairs of name and value. A single output has no name in the response.
export function outputsOf(answer, signature) {
  if (answer.results) return [["results", answer.results]];
  const { outputs } = answer;
  const names = signature.outputs.map((spec) => spec.name);
  return names.length === 1 ? [[names[0], outputs]] : Object.entries(outputs);
}

// Returns the best classes of the first rows: objects of `name` and `classes`, which have a label and a score.
export function topClasses(answer, signature, labels) {
  if (answer.results) return classified(answer.results);
  return outputsOf(answer, signature).flatMap(([name, value]) => {
    const spec = signature.outputs.find((each) => each.name === name);
    if (!spec || !isScores(spec, value, labels)) return [];
    return value.slice(0, MOST_ROWS).map((scores, row) => ({
      name: rowName(name, row, value),
      classes: best(scores, labels),
    }));
  });
}

function isScores(spec, value, labels) {
  const [rows, classes, ...inner] = sizesOf(value);
  if (!isFloat(spec) || !rows || !(classes >= 2) || inner.length) return false;
  if (!value.flat().every(Number.isFinite)) return false; // NaN and infinity are text
  return classes === labels.length || SCORE_NAMES.test(spec.name) || isDistribution(value[0]);
}

function isDistribution(scores) {
  const total = scores.reduce((all, score) => all + score, 0);
  return scores.every((score) => score >= 0) && Math.abs(total - 1) < 0.01;
}

function best(scores, labels) {
  const named = scores.map((score, index) => ({
    label: labels.length === scores.length ? labels[index] : `class ${index}`,
    score,
  }));
  return rank(named);
}

// Classify answers pairs of label and score for each example, and Regress numbers.
function classified(results) {
  if (!Array.isArray(results[0])) return [];
  if (!results.flat().every(([, score]) => Number.isFinite(score))) return []; // NaN and infinity are text
  return results.slice(0, MOST_ROWS).map((pairs, row) => ({
    name: rowName("classes", row, results),
    classes: rank(pairs.map(([label, score]) => ({ label, score }))),
  }));
}

const rank = (classes) => classes.sort((one, other) => other.score - one.score).slice(0, MOST_CLASSES);
const rowName = (name, row, rows) => (rows.length > 1 ? `${name}, row ${row}` : name);

// Returns figures of a large array.
export function summarize(value) {
  const numbers = flatten(value).filter((each) => typeof each === "number");
  if (!numbers.length) return null;
  let [least, most, total] = [Infinity, -Infinity, 0];
  for (const each of numbers) {
    least = Math.min(least, each);
    most = Math.max(most, each);
    total += each;
  }
  return { least, most, mean: total / numbers.length };
}
