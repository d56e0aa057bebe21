import { Link } from "@tanstack/react-router";
import { lookOf, nameOf, type Tone } from "../lib/states";
import { showDuration, showExact } from "../lib/time";

export interface JobRun {
  job_id: string;
  state: string;
  created_at: number;
  ended_at: number | null;
  num_tasks: number;
  num_failed: number;
}

const FILL: Record<Tone, string> = {
  good: "bg-good",
  bad: "bg-bad",
  warn: "bg-warn",
  run: "bg-run",
  wait: "bg-wait",
  off: "bg-line-strong",
};

/** The last runs of a job as bars, the newest at the right: the height is the duration, a failed one has a notch. */
export function RunBars({ runs, height = 28 }: { runs: JobRun[]; height?: number }) {
  const ordered = [...runs].reverse();
  const length = (run: JobRun) => (run.ended_at ?? run.created_at) - run.created_at;
  const longest = Math.max(1, ...ordered.map(length));
  return (
    <span className="inline-flex items-end gap-0.5" style={{ height }}>
      {ordered.map((run) => {
        const text = `${nameOf(run.state)}, ${run.ended_at ? showDuration(length(run) / 1e6) : "running"}, ${showExact(run.created_at)}`;
        const failed = lookOf(run.state).tone === "bad";
        return (
          <Link
            key={run.job_id}
            to="/jobs/$id"
            params={{ id: run.job_id }}
            title={text}
            aria-label={`Job ${run.job_id}: ${text}`}
            className="flex h-full w-1.5 items-end"
          >
            <span
              className={`block w-1.5 ${FILL[lookOf(run.state).tone]} ${failed ? "rounded-t-full" : ""}`}
              style={{ height: Math.max(4, (length(run) / longest) * height) }}
            />
          </Link>
        );
      })}
    </span>
  );
}
