import { lookOf, nameOf, type Tone } from "../lib/states";
import { StateIcon } from "./StateBadge";

const FILL: Record<Tone, string> = {
  good: "bg-good",
  bad: "bg-bad",
  warn: "bg-warn",
  run: "bg-run",
  wait: "bg-wait",
  off: "bg-line-strong",
};
const ORDER = [
  "SUCCEEDED",
  "FAILED",
  "TIMED_OUT",
  "CLIENT_ERROR",
  "BOT_DIED",
  "NO_RESOURCE",
  "EXPIRED",
  "KILLED",
  "CANCELLED",
  "RUNNING",
  "READY",
  "WAITING",
];

/** How many tasks are in which state: as one bar, and as numbers. */
export function StateBar({ counts, legend = true }: { counts: Record<string, number>; legend?: boolean }) {
  const states = Object.keys(counts)
    .filter((state) => counts[state])
    .sort((a, b) => ORDER.indexOf(a) - ORDER.indexOf(b));
  const total = states.reduce((sum, state) => sum + (counts[state] ?? 0), 0);
  if (total === 0) return null;
  const text = states.map((state) => `${counts[state]} ${nameOf(state)}`).join(", ");
  return (
    <div>
      <div role="img" aria-label={text} title={text} className="flex h-2 gap-px overflow-hidden rounded">
        {states.map((state) => (
          <div
            key={state}
            className={`min-w-1 ${FILL[lookOf(state).tone]}`}
            style={{ flexGrow: counts[state] ?? 0, flexBasis: 0 }}
          />
        ))}
      </div>
      {legend && (
        <ul className="mt-1 flex flex-wrap gap-x-4">
          {states.map((state) => (
            <li key={state} className="flex items-center gap-1">
              <StateIcon state={state} />
              {counts[state]} {nameOf(state)}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
