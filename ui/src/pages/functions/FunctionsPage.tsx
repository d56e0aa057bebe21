import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { callJson } from "../../api/client";
import { useLive } from "../../api/live";
import { type Column, DataTable } from "../../components/DataTable";
import { Empty, Loaded } from "../../components/Feedback";
import { Page } from "../../components/Page";
import { Facts, Panel } from "../../components/Panel";
import { StateBadge } from "../../components/StateBadge";
import { Time } from "../../components/Time";
import { plural, showNumber, showPercent } from "../../lib/format";
import { showDuration } from "../../lib/time";

interface FunctionInfo {
  name: string;
  num_tasks: number;
  num_failed: number;
  num_running: number;
  mean_s: number | null;
  p50_s: number | null;
  p95_s: number | null;
  last_at: number | null;
}

interface FunctionDetails {
  name: string;
  /** Null if none of its tasks is among the newest. */
  summary: FunctionInfo | null;
  errors: { state: string; reason: string; num_tasks: number; last_task_id: string }[];
  tasks: { task_id: string; state: string; created_at: number; duration_s: number | null }[];
}

const seconds = (value: number | null | undefined) => (value == null ? "–" : showDuration(value));

const COLUMNS: Column<FunctionInfo>[] = [
  {
    id: "name",
    header: "Name",
    className: "w-full min-w-40",
    cell: ({ name }) => (
      <Link to="/functions/$name" params={{ name }} className="font-medium [overflow-wrap:anywhere]">
        {name}
      </Link>
    ),
  },
  { id: "tasks", header: "Tasks", right: true, cell: (one) => showNumber(one.num_tasks) },
  { id: "running", header: "Running", right: true, wide: true, cell: (one) => showNumber(one.num_running) },
  {
    id: "failed",
    header: "Failed",
    right: true,
    cell: (one) => (
      <span className={one.num_failed > 0 ? "text-bad" : "text-dim"}>
        {showNumber(one.num_failed)}
        {one.num_tasks > 0 && one.num_failed > 0 ? ` (${showPercent(one.num_failed / one.num_tasks)})` : ""}
      </span>
    ),
  },
  { id: "p50", header: "Median", right: true, cell: (one) => seconds(one.p50_s) },
  { id: "p95", header: "95 %", right: true, wide: true, cell: (one) => seconds(one.p95_s) },
  { id: "mean", header: "Mean", right: true, optional: true, cell: (one) => seconds(one.mean_s) },
  { id: "last", header: "Last", wide: true, cell: (one) => <Time at={one.last_at} /> },
];

const rowKey = (one: FunctionInfo) => one.name;

/** What runs here by name: how long it takes and how often it fails. */
export function FunctionsPage() {
  const navigate = useNavigate();
  const functions = useLive<{ functions: FunctionInfo[] }>({
    key: ["functions"],
    fetch: (signal) => callJson("get", "/api/v1/functions", { signal }),
    everyMs: 10_000,
  });
  return (
    <Page title="Functions">
      <p className="text-dim">Functions that jobs call: how long they take and how often they fail.</p>
      <Loaded query={functions} what="The list of functions">
        {(data) => (
          <DataTable
            name="functions"
            caption="Functions by name"
            columns={COLUMNS}
            rows={data.functions}
            rowKey={rowKey}
            onOpen={({ name }) => void navigate({ to: "/functions/$name", params: { name } })}
            empty={
              <Empty title="No function was called yet">
                Functions of jobs appear here with their durations and errors.
              </Empty>
            }
          />
        )}
      </Loaded>
    </Page>
  );
}

export function FunctionPage() {
  const { name } = useParams({ strict: false }) as { name: string };
  const details = useLive<FunctionDetails>({
    key: ["function", name],
    fetch: (signal) => callJson("get", "/api/v1/functions/{name}", { path: { name }, signal }),
    everyMs: 10_000,
  });
  return (
    <Page title={name} crumbs={<Link to="/functions">Functions</Link>}>
      <Loaded query={details} what={`The function ${name}`}>
        {(data) => (
          <div className="grid gap-3 lg:grid-cols-2">
            <Panel title="Durations and failures">{data.summary && <Summary summary={data.summary} />}</Panel>
            <Panel title="Errors">
              {data.errors.length === 0 ? (
                <p className="text-dim">None has failed.</p>
              ) : (
                <ul className="space-y-1">
                  {data.errors.map((error) => (
                    <li key={`${error.state} ${error.reason}`} className="flex flex-wrap gap-2">
                      <span className="text-bad">{showNumber(error.num_tasks)} ×</span>
                      <StateBadge state={error.state} />
                      <span className="min-w-0 flex-1 [overflow-wrap:anywhere]">
                        {error.reason.replaceAll("_", " ")}
                      </span>
                      <Link to="/tasks/$id" params={{ id: error.last_task_id }} className="text-accent">
                        the last one
                      </Link>
                    </li>
                  ))}
                </ul>
              )}
            </Panel>
            <Panel title="Newest tasks" flush>
              <ul>
                {data.tasks.map((task) => (
                  <li key={task.task_id} className="flex gap-3 border-b border-line px-3 py-1 last:border-0">
                    <StateBadge state={task.state} />
                    <Link
                      to="/tasks/$id"
                      params={{ id: task.task_id }}
                      className="min-w-0 flex-1 font-mono text-xs leading-5 text-accent"
                    >
                      {task.task_id}
                    </Link>
                    <span>{seconds(task.duration_s)}</span>
                    <span className="text-dim">
                      <Time at={task.created_at} />
                    </span>
                  </li>
                ))}
              </ul>
            </Panel>
          </div>
        )}
      </Loaded>
    </Page>
  );
}

function Summary({ summary }: { summary: FunctionInfo }) {
  return (
    <Facts
      rows={[
        ["Tasks", plural(summary.num_tasks, "task")],
        ["Failed", summary.num_failed],
        ["Running", summary.num_running],
        ["Median", seconds(summary.p50_s)],
        ["95 %", seconds(summary.p95_s)],
        ["Mean", seconds(summary.mean_s)],
        ["Last", <Time key="l" at={summary.last_at} />],
      ]}
    />
  );
}
