import { Link, useParams, useSearch } from "@tanstack/react-router";
import { get, type Schemas } from "../../api/client";
import { useLive } from "../../api/live";
import { Empty, Loaded } from "../../components/Feedback";
import { Markdown } from "../../components/Markdown";
import { Page } from "../../components/Page";
import { Panel } from "../../components/Panel";
import { StateBadge } from "../../components/StateBadge";
import { Elapsed } from "../../components/Time";
import { type Search, textOf } from "../../lib/search";
import { isFinal } from "../../lib/states";
import { LogPanel } from "./log/LogPanel";
import { Request } from "./Request";
import { Runs } from "./Runs";
import { TaskActions } from "./TaskActions";
import { TaskFacts } from "./TaskFacts";
import { Values } from "./Values";
import { WhyDied } from "./WhyDied";
import { WhyWaits } from "./WhyWaits";

export type Task = Schemas["TaskInfo"];

/** How often the progress of a running function is read: the stream does not tell of it. */
const PROGRESS_MS = 2000;

export function TaskPage() {
  const { id } = useParams({ strict: false }) as { id: string };
  const task = useLive<Task>({
    key: ["task", id],
    fetch: (signal) => get("/api/v1/tasks/{id}", { path: { id }, signal }),
    topics: [`task:${id}`],
    settled: (data) => isFinal(data.result.state),
    everyMs: (data) => (data?.result.state === "RUNNING" && data.request.function ? PROGRESS_MS : undefined),
  });
  return (
    <Loaded query={task} what={`The task ${id}`}>
      {(data) => <TaskView task={data} />}
    </Loaded>
  );
}

function TaskView({ task }: { task: Task }) {
  const search = useSearch({ strict: false }) as Search;
  const { request, result, runs } = task;
  const wanted = Number(textOf(search, "run")) || 0;
  const shown = runs.find((run) => run.number === wanted) ?? runs.find((run) => run.run === result.run) ?? runs.at(-1);
  return (
    <Page
      title={request.name || task.task_id}
      heading={
        <span className="inline-flex flex-wrap items-center gap-2">
          <StateBadge state={result.state} large />
          <span className="[overflow-wrap:anywhere]">{request.name || "(no name)"}</span>
        </span>
      }
      crumbs={<Crumbs task={task} />}
      actions={<TaskActions task={task} />}
    >
      <div className="grid gap-3 lg:grid-cols-[minmax(0,1fr)_380px]">
        <div className="order-2 min-w-0 lg:order-1">
          {shown ? (
            <LogPanel
              key={shown.run}
              task={task.task_id}
              run={shown.number}
              runId={shown.run}
              growing={shown.ended_at === null && !isFinal(shown.state)}
              search={search}
            />
          ) : (
            <NoRun task={task} />
          )}
        </div>
        <aside aria-label="About this task" className="contents lg:order-2 lg:block lg:space-y-3">
          <div className="order-1 min-w-0 space-y-3">
            {isFinal(result.state) ? <WhyDied task={task} /> : <WhyWaits task={task} />}
          </div>
          <div className="order-3 min-w-0 space-y-3">
            {task.annotation && (
              <Panel title="Summary">
                <Markdown text={task.annotation.content} />
              </Panel>
            )}
            {task.job_id && <Values task={task} />}
            <TaskFacts task={task} />
            <Runs task={task} shown={shown?.number ?? 0} />
            <Request task={task} />
          </div>
        </aside>
      </div>
    </Page>
  );
}

function Crumbs({ task }: { task: Task }) {
  return (
    <>
      <Link to="/tasks">Tasks</Link>
      {task.job_id && (
        <>
          {" / "}
          <Link to="/jobs/$id" params={{ id: task.job_id }}>
            job {task.job_id}
          </Link>
        </>
      )}
      {task.request.parent && (
        <>
          {" / started by "}
          <Link to="/tasks/$id" params={{ id: task.request.parent }}>
            {task.request.parent}
          </Link>
        </>
      )}
      {" / "}
      <span>{task.task_id}</span>
    </>
  );
}

function NoRun({ task }: { task: Task }) {
  const { result } = task;
  return (
    <section aria-label="Log" className="rounded border border-line">
      {result.deduped_from ? (
        <Empty title="This task did not run: the same work was already done">
          Its result and log are those of{" "}
          <Link to="/tasks/$id" params={{ id: result.deduped_from }} className="text-accent">
            {result.deduped_from}
          </Link>
          .
        </Empty>
      ) : isFinal(result.state) ? (
        <Empty title="There is no log: no bot has run this task" />
      ) : (
        <Empty title="No bot has started this task yet">
          It has waited for <Elapsed from={result.ready_at ?? task.request.created_at} />. Its log appears here when it
          starts.
        </Empty>
      )}
    </section>
  );
}
