import { Link } from "@tanstack/react-router";
import { Panel } from "../../components/Panel";
import { Progress } from "../../components/Progress";
import { StateBadge } from "../../components/StateBadge";
import { Elapsed, Time } from "../../components/Time";
import { type Evidence, explainEnd } from "../../lib/evidence";
import { showBytes, showCost } from "../../lib/format";
import { isFinal } from "../../lib/states";
import { showDuration } from "../../lib/time";
import type { Task } from "./TaskPage";

/** Each run of a task with its own end and evidence. */
export function Runs({ task, shown }: { task: Task; shown: number }) {
  if (task.runs.length === 0) return null;
  return (
    <Panel title={`Runs (${task.runs.length})`} flush>
      <ul>
        {[...task.runs].reverse().map((run) => (
          <li
            key={run.run}
            className={`space-y-1 border-b border-line px-3 py-2 last:border-0 ${run.number === shown && task.runs.length > 1 ? "bg-accent-soft" : ""}`}
          >
            <div className="flex flex-wrap items-center gap-x-3">
              <Link
                to="/tasks/$id"
                params={{ id: task.task_id }}
                search={{ run: String(run.number) }}
                className="font-medium text-accent"
              >
                Run {run.number}
              </Link>
              <StateBadge state={run.state} />
              <Link to="/bots/$id" params={{ id: run.bot_id }} className="text-dim">
                {run.bot_id}
              </Link>
              {run.state === "RUNNING" && run.progress != null && <Progress value={run.progress} />}
              <span className="ml-auto">
                <Elapsed from={run.started_at ?? run.claimed_at} to={run.ended_at} />
              </span>
            </div>
            {isFinal(run.state) && run.state !== "SUCCEEDED" && (
              <div className="text-dim">
                {explainEnd({ ...run, evidence: run.evidence as Evidence | null }).join(" ")}
              </div>
            )}
            <div className="flex flex-wrap gap-x-3 text-xs text-dim">
              <span>
                started <Time at={run.started_at ?? run.claimed_at} />
              </span>
              {run.stdout_size !== null && <span>stdout {showBytes(run.stdout_size ?? 0)}</span>}
              {run.stderr_size !== null && <span>stderr {showBytes(run.stderr_size ?? 0)}</span>}
              {run.cost_usd > 0 && <span>{showCost(run.cost_usd)}</span>}
              {run.stats?.bot_overhead != null && <span>overhead {showDuration(run.stats.bot_overhead)}</span>}
            </div>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
