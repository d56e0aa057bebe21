import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { callJson, type Schemas } from "../../api/client";
import { useLive } from "../../api/live";
import { Chart } from "../../components/Chart";
import { Empty, Loaded } from "../../components/Feedback";
import { Page } from "../../components/Page";
import { Panel } from "../../components/Panel";
import { StateBadge, StateIcon } from "../../components/StateBadge";
import { Time } from "../../components/Time";
import { plural, showNumber } from "../../lib/format";
import { type Search, textOf } from "../../lib/search";
import { nameOf } from "../../lib/states";
import { WindowPicker } from "../bots/BotPage";

interface Stuck {
  kind: "queue" | "run" | "webhook";
  id: string;
  name: string;
  since: number | null;
  summary: string;
}

export interface Overview {
  now: number;
  bots: Record<string, number>;
  num_ready: number;
  num_running: number;
  queues: Schemas["QueueInfo"][];
  series: {
    start: number;
    step: number;
    submitted: (number | null)[];
    succeeded: (number | null)[];
    failed: (number | null)[];
  };
  stuck: Stuck[];
  my_tasks: Schemas["TaskSummary"][];
  my_jobs: Schemas["JobSummary"][];
}

type Window = "1h" | "24h" | "7d";

/** Is all well? */
export function HomePage() {
  const search = useSearch({ strict: false }) as Search;
  const navigate = useNavigate();
  const window = (["1h", "24h", "7d"].find((one) => one === textOf(search, "window")) ?? "1h") as Window;
  const overview = useLive<Overview>({
    key: ["overview", window],
    fetch: (signal) => callJson<Overview>("get", "/api/v1/overview", { query: { window }, signal }),
    topics: ["tasks", "bots"],
    atMostEveryMs: 3000,
    everyMs: 10_000,
    keepPrevious: true,
  });
  return (
    <Page title="Home">
      <Loaded query={overview} what="The overview">
        {(data) => (
          <div className="grid gap-3 lg:grid-cols-2">
            <StuckPanel stuck={data.stuck} />
            <BotsPanel overview={data} />
            <Panel
              title="Tasks"
              aside={
                <WindowPicker
                  value={window}
                  onChange={(value) => void navigate({ to: "/", search: { window: value } })}
                />
              }
            >
              <Chart
                title="Tasks"
                start={data.series.start}
                step={data.series.step}
                height={160}
                series={[
                  { label: "submitted", color: "run", values: data.series.submitted },
                  { label: "succeeded", color: "good", values: data.series.succeeded },
                  { label: "failed", color: "bad", values: data.series.failed },
                ]}
              />
            </Panel>
            <QueuesPanel queues={data.queues} />
            <MyTasks tasks={data.my_tasks} />
            <MyJobs jobs={data.my_jobs} />
          </div>
        )}
      </Loaded>
    </Page>
  );
}

function StuckPanel({ stuck }: { stuck: Stuck[] }) {
  return (
    <Panel title={stuck.length === 0 ? "Nothing is stuck" : plural(stuck.length, "thing is stuck", "things are stuck")}>
      {stuck.length === 0 ? (
        <p className="flex items-center gap-2 text-good">
          <StateIcon state="SUCCEEDED" /> Every task moves, every bot answers.
        </p>
      ) : (
        <ul className="space-y-1">
          {stuck.slice(0, 12).map((one) => (
            <li key={`${one.kind} ${one.id}`} className="flex items-start gap-2">
              <StateIcon state="quarantined" className="mt-0.5" />
              <span className="min-w-0 flex-1 [overflow-wrap:anywhere]">
                <StuckLink one={one} />: {one.summary}
              </span>
              {one.since && (
                <span className="text-dim">
                  <Time at={one.since} />
                </span>
              )}
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

function StuckLink({ one }: { one: Stuck }) {
  const label = one.name || one.id;
  const className = "font-medium text-accent";
  if (one.kind === "run") {
    return (
      <Link to="/tasks/$id" params={{ id: one.id }} className={className}>
        {label}
      </Link>
    );
  }
  if (one.kind === "queue")
    return (
      <Link to="/queues" className={className}>
        {label}
      </Link>
    );
  return (
    <Link to="/system/$part" params={{ part: "webhooks" }} className={className}>
      {label}
    </Link>
  );
}

const BOT_ORDER = ["busy", "idle", "draining", "maintenance", "quarantined", "silent", "dead"];

function BotsPanel({ overview }: { overview: Overview }) {
  const { bots } = overview;
  const total = Object.values(bots).reduce((sum, n) => sum + n, 0);
  return (
    <Panel title={`Bots (${showNumber(total)})`}>
      {total === 0 ? (
        <Empty title="There are no bots" command="myrmidon bot invite">
          Tasks wait until there is one. This prints a command that starts a bot:
        </Empty>
      ) : (
        <ul className="flex flex-wrap gap-x-4 gap-y-1">
          {BOT_ORDER.filter((state) => bots[state]).map((state) => (
            <li key={state}>
              <Link to="/bots" search={{ state }} className="flex items-center gap-1">
                <StateIcon state={state} />
                <span className="font-semibold">{showNumber(bots[state] ?? 0)}</span> {nameOf(state)}
              </Link>
            </li>
          ))}
        </ul>
      )}
      <p className="mt-3 text-dim">
        <Link to="/tasks" search={{ state: ["RUNNING"] }} className="text-text">
          {plural(overview.num_running, "task")} running
        </Link>
        ,{" "}
        <Link to="/tasks" search={{ state: ["READY"] }} className="text-text">
          {showNumber(overview.num_ready)} waiting for a bot
        </Link>
      </p>
    </Panel>
  );
}

function QueuesPanel({ queues }: { queues: Schemas["QueueInfo"][] }) {
  const deep = queues.filter((queue) => queue.num_ready > 0).slice(0, 6);
  return (
    <Panel
      title="Queues"
      aside={
        <Link to="/queues" className="text-accent">
          all
        </Link>
      }
    >
      {deep.length === 0 ? (
        <p className="text-dim">No task waits for a bot.</p>
      ) : (
        <table className="w-full">
          <thead className="text-xs text-dim">
            <tr>
              <th scope="col" className="text-left font-medium">
                Dimensions
              </th>
              <th scope="col" className="text-right font-medium">
                Waiting
              </th>
              <th scope="col" className="text-right font-medium">
                Oldest
              </th>
              <th scope="col" className="text-right font-medium">
                Bots
              </th>
            </tr>
          </thead>
          <tbody>
            {deep.map((queue) => (
              <tr key={queue.id}>
                <td className="py-0.5 font-mono text-xs [overflow-wrap:anywhere]">
                  {Object.entries(queue.dimensions)
                    .map(([key, values]) => `${key}=${values.join("|")}`)
                    .join(" ")}
                </td>
                <td className="text-right">{showNumber(queue.num_ready)}</td>
                <td className="text-right">
                  <Time at={queue.oldest_at} />
                </td>
                <td className={`text-right ${queue.num_bots === 0 ? "font-semibold text-bad" : ""}`}>
                  {queue.num_bots}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Panel>
  );
}

function MyTasks({ tasks }: { tasks: Schemas["TaskSummary"][] }) {
  return (
    <Panel title="My tasks">
      {tasks.length === 0 ? (
        <Empty title="You have not submitted a task yet" command="myrmidon run -- echo hello" />
      ) : (
        <ul className="divide-y divide-line">
          {tasks.slice(0, 10).map((task) => (
            <li key={task.task_id} className="flex items-center gap-3 py-0.5">
              <StateBadge state={task.state} column />
              <Link to="/tasks/$id" params={{ id: task.task_id }} className="min-w-0 flex-1 truncate">
                {task.name || task.task_id}
              </Link>
              <span className="text-dim">
                <Time at={task.created_at} />
              </span>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

function MyJobs({ jobs }: { jobs: Schemas["JobSummary"][] }) {
  return (
    <Panel title="My jobs">
      {jobs.length === 0 ? (
        <Empty
          title="You have not submitted a job yet"
          command="myrmidon job submit examples/build-and-test.yaml --watch"
        />
      ) : (
        <ul className="divide-y divide-line">
          {jobs.slice(0, 10).map((job) => (
            <li key={job.job_id} className="flex items-center gap-3 py-0.5">
              <StateBadge state={job.state} column />
              <Link to="/jobs/$id" params={{ id: job.job_id }} className="min-w-0 flex-1 truncate">
                {job.name || job.job_id}
              </Link>
              <span className="text-dim">
                {showNumber(job.num_succeeded)} of {showNumber(job.num_tasks)}
              </span>
              <span className="text-dim">
                <Time at={job.created_at} />
              </span>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}
