import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useEffect, useMemo, useState } from "react";
import { type ApiError, get, post, type Schemas } from "../../api/client";
import { refreshList, subscribe, useConnection } from "../../api/live";
import { mayWrite, useSession } from "../../api/session";
import { Action } from "../../components/Action";
import { Button } from "../../components/Button";
import { type Column, DataTable } from "../../components/DataTable";
import { Empty, Failed, Loading } from "../../components/Feedback";
import { Progress } from "../../components/Progress";
import { StateBadge } from "../../components/StateBadge";
import { commandLine } from "../../lib/command";
import { JOB_STATES, nameOf, TASK_STATES } from "../../lib/states";
import { showDuration } from "../../lib/time";
import { useJob } from "./context";

type JobTask = Schemas["JobTask"];

const COLUMNS: Column<JobTask>[] = [
  {
    id: "state",
    header: "State",
    cell: (task) => (
      <>
        <StateBadge state={task.state} />
        {task.state === "RUNNING" && task.progress != null && <Progress value={task.progress} />}
      </>
    ),
  },
  {
    id: "label",
    header: "Label",
    className: "w-full min-w-36",
    cell: (task) => (
      <>
        <Link to="/tasks/$id" params={{ id: task.task_id }} className="font-medium [overflow-wrap:anywhere]">
          {task.label}
        </Link>
        {task.held && <span className="ml-2 text-wait">held</span>}
      </>
    ),
  },
  {
    id: "waits",
    header: "Waits for",
    wide: true,
    cell: (task) => (
      <span className="text-dim">
        {task.requires_left.slice(0, 3).join(", ")}
        {task.requires_left.length > 3 ? " …" : ""}
      </span>
    ),
  },
  {
    id: "waited",
    header: "Waited",
    right: true,
    wide: true,
    cell: (task) => (task.waited_s != null ? showDuration(task.waited_s) : "–"),
  },
  {
    id: "duration",
    header: "Duration",
    right: true,
    cell: (task) => (task.duration_s != null ? showDuration(task.duration_s) : "–"),
  },
  {
    id: "bot",
    header: "Bot",
    wide: true,
    cell: (task) =>
      task.bot_id ? (
        <Link to="/bots/$id" params={{ id: task.bot_id }} className="whitespace-nowrap text-dim">
          {task.bot_id}
        </Link>
      ) : (
        "–"
      ),
  },
  { id: "exit", header: "Exit code", right: true, optional: true, cell: (task) => task.exit_code },
  { id: "reruns", header: "Reruns left", right: true, optional: true, cell: (task) => task.reruns_left },
  { id: "priority", header: "Priority", right: true, optional: true, cell: (task) => task.priority },
  { id: "requires", header: "Requires", optional: true, cell: (task) => task.requires.join(", ") },
  { id: "rerun", header: "", cell: (task) => <RerunOne task={task} /> },
];

function RerunOne({ task }: { task: JobTask }) {
  const job = useJob();
  const client = useQueryClient();
  const { data: session } = useSession();
  if (!task.resolution?.failed || !mayWrite(session)) return null;
  return (
    <Action
      label="Rerun"
      explanation={`${task.label} runs again, and everything that depends on it.`}
      command={commandLine("myrmidon", "job", "rerun", job.job_id, "--from", task.label)}
      run={() =>
        post("/api/v1/jobs/{id}/rerun", { path: { id: job.job_id }, body: { task: task.label, cascade: true } }).then(
          () => client.invalidateQueries(),
        )
      }
    />
  );
}

const rowKey = (task: JobTask) => task.task_id;
const rowVersion = (task: JobTask) => task.state;

/** How often the progress of running functions is read, which the stream does not tell of: often if there is some. */
function progressInterval(tasks: JobTask[]): number | false {
  const running = tasks.filter((task) => task.state === "RUNNING");
  if (running.some((task) => task.progress != null)) return 2000;
  return running.length > 0 ? 5000 : false;
}

/** The tasks of a job as a table: the same as the graph, for the keyboard and for readers of the screen. */
export function JobTasks() {
  const job = useJob();
  const navigate = useNavigate();
  const [label, setLabel] = useState("");
  const [state, setState] = useState("");
  const connection = useConnection();
  const client = useQueryClient();
  const id = job.job_id;
  const key = ["job-tasks", id, label, state];
  const keyText = JSON.stringify(key);
  const query = useInfiniteQuery<Schemas["JobTasks"], ApiError, { pages: Schemas["JobTasks"][] }, unknown[], string>({
    queryKey: key,
    queryFn: ({ pageParam, signal }) =>
      get("/api/v1/jobs/{id}/tasks", {
        path: { id },
        query: { limit: 200, cursor: pageParam, state, label: label ? `*${label}*` : "" },
        signal,
      }),
    initialPageParam: "",
    getNextPageParam: (page) => page.cursor,
    placeholderData: (before) => before,
    refetchInterval: (current) => {
      if ((JOB_STATES as readonly string[]).indexOf(job.state) > 1) return false;
      if (connection !== "live") return 2000;
      return progressInterval(current.state.data?.pages.flatMap((page) => page.tasks) ?? []);
    },
  });
  useEffect(
    () => subscribe([`job:${id}`], () => refreshList(client, JSON.parse(keyText) as unknown[])),
    [client, id, keyText],
  );
  const rows = useMemo(() => query.data?.pages.flatMap((page) => page.tasks) ?? [], [query.data]);
  return (
    <div className="space-y-2">
      <div className="flex flex-wrap gap-2">
        <input
          data-filter
          aria-label="Filter by label"
          placeholder="label"
          value={label}
          onChange={(event) => setLabel(event.target.value)}
        />
        <select aria-label="State" value={state} onChange={(event) => setState(event.target.value)}>
          <option value="">any state</option>
          {TASK_STATES.map((one) => (
            <option key={one} value={one}>
              {nameOf(one)}
            </option>
          ))}
        </select>
      </div>
      {query.error && rows.length === 0 ? (
        <Failed error={query.error} what="The list of tasks" retry={() => void query.refetch()} />
      ) : query.isPending ? (
        <Loading />
      ) : (
        <DataTable
          name="job-tasks"
          caption="Tasks of this job, by label"
          columns={COLUMNS}
          rows={rows}
          rowKey={rowKey}
          version={rowVersion}
          onOpen={(task) => void navigate({ to: "/tasks/$id", params: { id: task.task_id } })}
          empty={<Empty title="No task matches" />}
        />
      )}
      {query.hasNextPage && (
        <div className="text-center">
          <Button disabled={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
            More tasks
          </Button>
        </div>
      )}
    </div>
  );
}
