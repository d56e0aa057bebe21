import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { Schemas } from "../../api/client";
import { fetchTail } from "../../api/tail";
import { Panel } from "../../components/Panel";
import { Elapsed, Time } from "../../components/Time";
import { className, type Evidence, explainEnd } from "../../lib/evidence";
import { tellingLine } from "../../lib/failures";
import { lookOf } from "../../lib/states";
import type { Task } from "./TaskPage";

const MAX_LINE = 400;

/** The exception that has ended a function. */
function Raised({ error }: { error: Schemas["FunctionError"] }) {
  return (
    <>
      <p className="font-mono text-xs text-bad [overflow-wrap:anywhere]">
        {className(error.type)}
        {error.message && `: ${error.message}`}
      </p>
      {error.traceback && (
        <details open>
          <summary className="text-dim">Traceback</summary>
          <pre
            tabIndex={0}
            className="mt-1 max-h-80 overflow-auto rounded bg-panel p-2 font-mono text-xs whitespace-pre-wrap [overflow-wrap:anywhere]"
          >
            {error.traceback}
          </pre>
        </details>
      )}
    </>
  );
}

/** The line of its log that says most about why a command has failed. */
function LastWords({ task }: { task: Task }) {
  const tail = useQuery({
    queryKey: ["tail", task.task_id, task.result.run],
    queryFn: ({ signal }) => fetchTail(task.task_id, signal),
    staleTime: Number.POSITIVE_INFINITY,
  });
  const line = tellingLine(tail.data ?? "");
  return line && <p className="font-mono text-xs text-bad [overflow-wrap:anywhere]">{line.slice(0, MAX_LINE)}</p>;
}

/** How a task ended, with the evidence. */
export function WhyDied({ task }: { task: Task }) {
  const { result, runs } = task;
  const deciding = runs.find((run) => run.run === result.run) ?? runs.at(-1);
  const evidence = (deciding?.evidence ?? null) as Evidence | null;
  const sentences = explainEnd({
    state: result.state,
    reason: result.reason || deciding?.reason || "",
    exit_code: result.exit_code ?? deciding?.exit_code ?? null,
    evidence,
    ended_at: deciding?.ended_at ?? null,
    error: deciding?.error ?? null,
  });
  const good = result.state === "SUCCEEDED";
  return (
    <Panel title={good ? "It succeeded" : "Why it ended"}>
      <div className="space-y-2">
        {!good && <p className="font-medium">{sentences[0] ?? `It ${lookOf(result.state).words}.`}</p>}
        {sentences.slice(1).map((sentence) => (
          <p key={sentence}>{sentence}</p>
        ))}
        {evidence?.message && !deciding?.error && (
          <pre className="overflow-x-auto whitespace-pre-wrap rounded bg-bad-soft p-2 text-xs text-bad [overflow-wrap:anywhere]">
            {evidence.message}
          </pre>
        )}
        {deciding?.error && <Raised error={deciding.error} />}
        {!deciding?.error && result.exit_code ? <LastWords task={task} /> : null}
        <p className="text-dim">
          {deciding ? (
            <>
              Ran for{" "}
              <Elapsed
                from={deciding.started_at ?? deciding.claimed_at}
                to={deciding.ended_at ?? deciding.claimed_at}
              />{" "}
              on{" "}
              <Link to="/bots/$id" params={{ id: deciding.bot_id }} className="text-accent">
                {deciding.bot_id}
              </Link>
              , ended <Time at={deciding.ended_at} />.
            </>
          ) : (
            <>
              Ended <Time at={result.completed_at ?? result.abandoned_at} /> without a run.
            </>
          )}
        </p>
        {runs.length > 1 && (
          <p className="text-dim">It had {runs.length} runs; each is listed below with its own reason.</p>
        )}
      </div>
    </Panel>
  );
}
