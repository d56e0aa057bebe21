/** Times of a job's tasks for the Gantt view. All times in microseconds. */

export interface Row {
  label: string;
  task_id: string;
  state: string;
  bot_id: string | null;
  ready_at: number | null;
  started_at: number | null;
  completed_at: number | null;
  critical: boolean;
}

export interface Range {
  from: number;
  to: number;
}

/** In the order in which they became ready; those that did not yet come last. */
export function sortRows(rows: readonly Row[]): Row[] {
  const begin = (row: Row) => row.ready_at ?? row.started_at ?? row.completed_at ?? Number.MAX_SAFE_INTEGER;
  return [...rows].sort(
    (a, b) =>
      begin(a) - begin(b) || (a.started_at ?? Infinity) - (b.started_at ?? Infinity) || compare(a.label, b.label),
  );
}

function compare(a: string, b: string): number {
  return a.localeCompare(b, undefined, { numeric: true });
}

/** The time that the rows cover; a job that runs goes on until now. */
export function rangeOf(rows: readonly Row[], now: number): Range {
  let from = Infinity;
  let to = -Infinity;
  for (const row of rows) {
    const begin = row.ready_at ?? row.started_at;
    if (begin === null || begin === undefined) continue;
    from = Math.min(from, begin);
    to = Math.max(to, row.completed_at ?? now);
  }
  if (from > to) return { from: now - 1e6, to: now };
  return { from, to: Math.max(to, from + 1000) };
}

export interface Timed {
  label: string;
  requires: string[];
  ready_at: number | null;
  completed_at: number | null;
}

/** The chain of tasks that made the job as long as it was: from the last one back to the latest of its parents. */
export function criticalPath(tasks: readonly Timed[], now: number): string[] {
  const byLabel = new Map(tasks.map((task) => [task.label, task]));
  const end = (task: Timed) => task.completed_at ?? (task.ready_at === null ? 0 : now);
  let current = tasks.reduce<Timed | undefined>(
    (best, task) => (task.ready_at !== null && (!best || end(task) > end(best)) ? task : best),
    undefined,
  );
  const path: string[] = [];
  const seen = new Set<string>();
  while (current && !seen.has(current.label)) {
    seen.add(current.label);
    path.unshift(current.label);
    let latest: Timed | undefined;
    for (const label of current.requires) {
      const parent = byLabel.get(label);
      if (parent && (!latest || end(parent) > end(latest))) latest = parent;
    }
    current = latest;
  }
  return path;
}

const STEPS_S = [
  0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 604800,
];

/** Round times for the axis, in microseconds since the beginning; at most about `max` of them. */
export function axisTicks(range: Range, origin: number, max: number): number[] {
  const span = (range.to - range.from) / 1e6;
  const step = (STEPS_S.find((one) => span / one <= max) ?? span / max) * 1e6;
  const ticks: number[] = [];
  for (let at = Math.ceil((range.from - origin) / step) * step; at <= range.to - origin; at += step) ticks.push(at);
  return ticks;
}

/** Zoom around a place (0 to 1 of the width); stays within `limits`. */
export function zoomed(range: Range, factor: number, place: number, limits: Range): Range {
  const centre = range.from + (range.to - range.from) * place;
  const span = Math.max(1000, Math.min(limits.to - limits.from, (range.to - range.from) * factor));
  return within({ from: centre - span * place, to: centre + span * (1 - place) }, limits);
}

export function within(range: Range, limits: Range): Range {
  const span = range.to - range.from;
  if (span >= limits.to - limits.from) return limits;
  const from = Math.max(limits.from, Math.min(limits.to - span, range.from));
  return { from, to: from + span };
}
