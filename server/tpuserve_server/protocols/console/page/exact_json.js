// JSON with numbers that JavaScript cannot hold: long integers, and NaN and infinity, which JSON does not have.
// They become text, as the server wrote them.
import { InputError } from "./input_error.js";

const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|-?\bInfinity\b|\bNaN\b/g;
const LONG = /(?:^|[[,:\s])-?\d{16}/;

export function parse(text) {
  if (!LONG.test(text)) {
    try {
      return JSON.parse(text);
    } catch {
      // It may have NaN or infinity.
    }
  }
  return JSON.parse(text.replace(TOKENS, (token) => (isInexact(token) ? `"${token}"` : token)));
}

// Parses what the user has typed. `subject` begins the message of an InputError: "x is".
export function parseTyped(text, subject) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new InputError(`${subject} no JSON: ${error.message}`);
  }
  const long = LONG.test(text) && text.match(TOKENS).find(isInexact);
  if (long) throw new InputError(`The browser would round ${long}. Send such numbers with another client.`);
  return value;
}

function isInexact(token) {
  return /^-?\d+$/.test(token) ? !Number.isSafeInteger(Number(token)) : /^-?[IN]/.test(token);
}
