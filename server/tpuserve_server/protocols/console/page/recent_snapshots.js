// The snapshots of the last minutes, and the series of their values.
export const SPAN_S = 300;

export class RecentSnapshots {
  constructor() {
    this.kept = [];
  }

  add(snapshot) {
    this.kept.push(snapshot);
    const oldest = snapshot.at - SPAN_S;
    while (this.kept[0].at < oldest) this.kept.shift();
  }

  get newest() {
    return this.kept.at(-1) ?? null;
  }

  // Points of time and value. The value is null where the version had none.
  ofVersion(model, version, field) {
    return this.kept.map((snapshot) => [snapshot.at, findVersion(snapshot, model, version)?.[field] ?? null]);
  }

  // `read` returns the value of a snapshot.
  ofServer(read) {
    return this.kept.map((snapshot) => [snapshot.at, read(snapshot)]);
  }
}

export const findVersion = (snapshot, model, version) =>
  snapshot.versions.find((one) => one.model === model && one.version === version);

export const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);

export function largest(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  return known.length ? Math.max(...known) : null;
}

export function mean(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  return known.length ? sum(known) / known.length : null;
}
