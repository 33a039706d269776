// Reads the header server-timing (https://www.w3.org/TR/server-timing/).
const ENTRY = /\s*([^;,\s]+)((?:;\s*[^=;,\s]+=(?:"(?:[^"\\]|\\.)*"|[^;,"]*))*)\s*(?:,|$)/y;
const PARAMETER = /;\s*([^=;,\s]+)=(?:"((?:[^"\\]|\\.)*)"|([^;,"]*))/g;

// Returns the stages in order, without their total, and the total in milliseconds.
export function readTiming(value) {
  const stages = [];
  let totalMs = null;
  let startMs = 0;
  ENTRY.lastIndex = 0;
  for (let found = ENTRY.exec(value ?? ""); found && found[0]; found = ENTRY.exec(value)) {
    const parameters = Object.fromEntries(
      [...found[2].matchAll(PARAMETER)].map((
        [, name, quoted, plain],
      ) => [name, quoted?.replace(/\\(.)/g, "$1") ?? plain]),
    );
    const durationMs = Number(parameters.dur);
    if (!Number.isFinite(durationMs)) continue; // a proxy's entry
    if (found[1] === "total") {
      totalMs = durationMs;
      continue;
    }
    stages.push({ name: found[1], start_ms: startMs, duration_ms: durationMs, reason: parameters.desc ?? "" });
    startMs += durationMs;
  }
  return { stages, totalMs };
}
