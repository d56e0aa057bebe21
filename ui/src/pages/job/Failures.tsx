import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { get, type Schemas } from "../../api/client";
import { useLive } from "../../api/live";
import { Empty, Loaded } from "../../components/Feedback";
import { Panel } from "../../components/Panel";
import { StateBadge, StateIcon } from "../../components/StateBadge";
import { parseAnsi } from "../../lib/ansi";
import { plural } from "../../lib/format";
import { isFinal } from "../../lib/states";
import { showDuration } from "../../lib/time";
import { type Job, useJob } from "./context";

const MAX_SHOWN = 12;

type FailureGroup = Schemas["FailureGroup"];

/** What failed, grouped by what it says; the ends of the logs; what differs from the last success. */
export function Failures() {
  const job = useJob();
  const failures = useLive<FailureGroup[]>({
    key: ["failures", job.job_id, job.num_failed],
    fetch: async (signal) => (await get("/api/v1/jobs/{id}/failures", { path: { id: job.job_id }, signal })).groups,
    topics: [`job:${job.job_id}`],
    settled: () => isFinal(job.state),
    keepPrevious: true,
  });
  return (
    <div className="grid gap-3 xl:grid-cols-[minmax(0,1fr)_420px]">
      <div className="min-w-0 space-y-3">
        <Loaded query={failures} what="The list of failures">
          {(groups) =>
            groups.length === 0 ? (
              <NoFailures job={job} />
            ) : (
              groups.map((group) => (
                <Group key={group.tasks[0]?.task_id} group={group} first={job.first_failure?.task_id} />
              ))
            )
          }
        </Loaded>
      </div>
      <div className="min-w-0">
        <Differences job={job} />
      </div>
    </div>
  );
}

function NoFailures({ job }: { job: Job }) {
  if (job.state === "SUCCEEDED") return <Empty title="Every task succeeded" />;
  if (job.state === "CANCELLED") return <Empty title="The job was cancelled; no task failed by itself" />;
  return (
    <Empty title="Nothing has failed so far">
      Failures appear here as they happen. The graph and the time view show what runs.
    </Empty>
  );
}

function Group({ group, first }: { group: FailureGroup; first: string | undefined }) {
  const [lead] = group.tasks;
  if (!lead) return null;
  const lines = group.tail
    .trimEnd()
    .split("\n")
    .slice(-14)
    .filter((line, _, all) => line || all.length > 1);
  return (
    <section className="rounded border border-line">
      <div className="flex items-start gap-2 border-b border-line bg-bad-soft px-3 py-2">
        <StateIcon state={group.state} className="mt-0.5" />
        <h2 className="min-w-0 flex-1 font-mono text-xs leading-5 text-bad [overflow-wrap:anywhere]">
          {group.message || plainMessage(group)}
          {group.error?.place && <span className="block text-dim">raised at {group.error.place}</span>}
        </h2>
        <span className="whitespace-nowrap text-bad">{plural(group.num_tasks, "task")}</span>
      </div>
      {group.error?.traceback && (
        <pre
          role="group"
          tabIndex={0}
          aria-label={`The traceback of ${lead.label}`}
          className="max-h-64 overflow-auto border-b border-line p-2 font-mono text-xs whitespace-pre-wrap [overflow-wrap:anywhere]"
        >
          {group.error.traceback}
        </pre>
      )}
      {lines.length > 0 && (
        <pre
          role="group"
          tabIndex={0}
          aria-label={`The end of the log of ${lead.label}`}
          className="max-h-64 overflow-auto border-b border-line p-2"
        >
          {lines.map((line, i) => (
            <div key={i} className="log-line">
              {parseAnsi(line).spans.map((span, j) => (
                <span key={j} className={span.classes || undefined}>
                  {span.text}
                </span>
              ))}{" "}
            </div>
          ))}
        </pre>
      )}
      <ul className="divide-y divide-line">
        {group.tasks.slice(0, MAX_SHOWN).map((task) => (
          <li key={task.task_id} className="flex flex-wrap items-center gap-x-3 px-3 py-1">
            <Link
              to="/tasks/$id"
              params={{ id: task.task_id }}
              className="font-medium text-accent [overflow-wrap:anywhere]"
            >
              {task.label}
            </Link>
            <StateBadge state={group.state} />
            {!group.error && task.exit_code !== null && task.exit_code !== 0 && (
              <span className="text-dim">exit code {task.exit_code}</span>
            )}
            {task.task_id === first && <span className="text-dim">the first failure</span>}
            {task.bot_id && (
              <Link to="/bots/$id" params={{ id: task.bot_id }} className="ml-auto text-dim">
                {task.bot_id}
              </Link>
            )}
          </li>
        ))}
        {group.num_tasks > MAX_SHOWN && (
          <li className="px-3 py-1 text-dim">and {group.num_tasks - Math.min(MAX_SHOWN, group.tasks.length)} more</li>
        )}
      </ul>
    </section>
  );
}

/** How the tasks ended if nothing says why: no exception, no words of the bot and no output. */
function plainMessage(group: FailureGroup): string {
  if (group.exit_code) return `exit code ${group.exit_code}`;
  return (group.reason || group.state.toLowerCase()).replaceAll("_", " ");
}

/** What differs from the last job of the same name that succeeded. */
function Differences({ job }: { job: Job }) {
  const wanted = job.num_failed > 0 && job.name !== "";
  const query = useQuery({
    queryKey: ["differences", job.job_id, job.state],
    enabled: wanted,
    staleTime: 60_000,
    queryFn: async ({ signal }) => {
      const { jobs } = await get("/api/v1/jobs", { query: { name: job.name, state: ["SUCCEEDED"], limit: 1 }, signal });
      const other = jobs[0];
      if (!other) return null;
      return get("/api/v1/jobs/{id}/compare", {
        path: { id: other.job_id },
        query: { other: job.job_id, limit: 50 },
        signal,
      });
    },
  });
  if (!wanted) return null;
  return (
    <Panel title="What differs from the last success">
      {query.error ? (
        <p className="text-dim">{query.error.message}</p>
      ) : query.data === undefined ? (
        <p className="text-dim">Comparing …</p>
      ) : query.data === null ? (
        <p className="text-dim">No job with the name {job.name} has succeeded yet.</p>
      ) : (
        <Comparison comparison={query.data} />
      )}
    </Panel>
  );
}

const WHAT: Record<string, string> = {
  only_in_first: "is not in this job",
  only_in_second: "is new in this job",
  definition: "has another definition",
  exit_code: "has another exit code",
};

/** States and durations are shown themselves, and another state nearly always has another exit code. */
function wordsOf(what: readonly string[]): string {
  const shown = what.filter((one) => WHAT[one] && !(one === "exit_code" && what.includes("state")));
  return shown.map((one) => WHAT[one]).join(", ");
}

type Difference = Schemas["JobComparison"]["differences"][number];

/** What ended differently comes first, then what only took another time. */
function byWeight(a: Difference, b: Difference): number {
  return (
    Number(b.what.includes("state")) - Number(a.what.includes("state")) ||
    a.label.localeCompare(b.label, undefined, { numeric: true })
  );
}

function Comparison({ comparison }: { comparison: Schemas["JobComparison"] }) {
  return (
    <div className="space-y-2">
      <p className="text-dim">
        Compared with{" "}
        <Link to="/jobs/$id" params={{ id: comparison.first.job_id }} className="text-accent">
          {comparison.first.job_id}
        </Link>
        : {plural(comparison.num_equal, "task")} equal.
      </p>
      <ul className="space-y-1">
        {[...comparison.differences].sort(byWeight).map((one) => (
          <li key={one.label} className="flex flex-wrap items-center gap-x-2">
            <span className="font-medium [overflow-wrap:anywhere]">{one.label}</span>
            {one.states[0] && one.states[0] !== one.states[1] && (
              <>
                <StateBadge state={one.states[0]} />
                {one.states[1] && <span className="text-dim">→</span>}
              </>
            )}
            {one.states[1] && <StateBadge state={one.states[1]} />}
            {one.what.includes("duration") && (
              <span className="text-dim">
                {showDuration(one.durations_s[0] ?? 0)} → {showDuration(one.durations_s[1] ?? 0)}
              </span>
            )}
            <span className="text-dim">{wordsOf(one.what)}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}
