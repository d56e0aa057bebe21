import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { get, type Schemas } from "../../api/client";
import { useLive } from "../../api/live";
import { type Column, DataTable } from "../../components/DataTable";
import { Empty, Loaded } from "../../components/Feedback";
import { Page } from "../../components/Page";
import { Facts, Panel } from "../../components/Panel";
import { StateBadge } from "../../components/StateBadge";
import { Time } from "../../components/Time";
import { plural, shortId, showNumber, showPercent } from "../../lib/format";
import { showDuration } from "../../lib/time";

type FunctionInfo = Schemas["FunctionSummary"];

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
  const functions = useLive<Schemas["FunctionList"]>({
    key: ["functions"],
    fetch: (signal) => get("/api/v1/functions", { signal }),
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
  const details = useLive<Schemas["FunctionInfo"]>({
    key: ["function", name],
    fetch: (signal) => get("/api/v1/functions/{name}", { path: { name }, signal }),
    everyMs: 10_000,
  });
  return (
    <Page title={name} crumbs={<Link to="/functions">Functions</Link>}>
      <Loaded query={details} what={`The function ${name}`}>
        {(data) =>
          !data.summary && data.tasks.length === 0 ? (
            <Empty title={`No task has called ${name}`}>
              Names of functions begin with their module. Tasks that were deleted do not count.
            </Empty>
          ) : (
            <div className="grid gap-3 lg:grid-cols-2">
              <Panel title="Durations and failures">{data.summary && <Summary summary={data.summary} />}</Panel>
              <Panel title="Errors">
                {data.errors.length === 0 ? (
                  <p className="text-dim">None has failed.</p>
                ) : (
                  <ul className="space-y-1">
                    {data.errors.map((error) => (
                      <li key={`${error.state} ${error.reason} ${error.error}`} className="flex flex-wrap gap-2">
                        <span className="text-bad">{showNumber(error.num_tasks)} ×</span>
                        <StateBadge state={error.state} />
                        <span className="min-w-0 flex-1 [overflow-wrap:anywhere]">
                          {error.error || error.reason.replaceAll("_", " ")}
                        </span>
                        <Link to="/tasks/$id" params={{ id: error.last_task_id }} className="text-accent">
                          the last one
                        </Link>
                      </li>
                    ))}
                  </ul>
                )}
              </Panel>
              <Panel title="Versions of its code">
                <Facts
                  rows={data.versions.map((version) => [
                    version.code ? shortId(version.code) : "installed on the bot",
                    <span key={version.code}>
                      {plural(version.num_tasks, "task")}, {version.num_failed} failed, last{" "}
                      <Time at={version.last_at} />
                    </span>,
                  ])}
                />
              </Panel>
              <Panel title="Newest tasks" flush>
                <ul>
                  {data.tasks.map((task) => (
                    <li key={task.task_id} className="flex gap-3 border-b border-line px-3 py-1 last:border-0">
                      <StateBadge state={task.state} />
                      <Link
                        to="/tasks/$id"
                        params={{ id: task.task_id }}
                        className="min-w-0 flex-1 truncate font-mono text-xs leading-5 text-accent"
                      >
                        {task.task_id}
                      </Link>
                      <span className="whitespace-nowrap">{seconds(task.duration_s)}</span>
                      <span className="whitespace-nowrap text-dim">
                        <Time at={task.created_at} />
                      </span>
                    </li>
                  ))}
                </ul>
              </Panel>
            </div>
          )
        }
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
