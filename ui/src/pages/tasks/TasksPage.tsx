import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useMemo, useState } from "react";
import { type ApiError, get, type Schemas } from "../../api/client";
import { refreshList, subscribe, useConnection } from "../../api/live";
import { mayWrite, useSession } from "../../api/session";
import { Button } from "../../components/Button";
import { type Column, DataTable } from "../../components/DataTable";
import { Empty, Failed, Loading } from "../../components/Feedback";
import { Page } from "../../components/Page";
import { StateBadge } from "../../components/StateBadge";
import { Tags } from "../../components/Tags";
import { Elapsed, Time } from "../../components/Time";
import { shortId } from "../../lib/format";
import type { Search } from "../../lib/search";
import { ownTags } from "../../lib/tags";
import { Bulk } from "./Bulk";
import { apiFilters, Filters } from "./Filters";
import { StateCounts } from "./StateCounts";

type Task = Schemas["TaskSummary"];

export const TASK_COLUMNS: Column<Task>[] = [
  { id: "state", header: "State", cell: (task) => <StateBadge state={task.state} /> },
  {
    id: "name",
    header: "Name",
    className: "w-full min-w-40",
    cell: (task) => (
      <Link to="/tasks/$id" params={{ id: task.task_id }} className="font-medium text-text [overflow-wrap:anywhere]">
        {task.name || "(no name)"}
      </Link>
    ),
  },
  { id: "tags", header: "Tags", wide: true, cell: (task) => <Tags tags={ownTags(task.tags)} max={3} oneLine /> },
  { id: "user", header: "User", wide: true, cell: (task) => task.user || <span className="text-dim">–</span> },
  { id: "created", header: "Created", cell: (task) => <Time at={task.created_at} /> },
  {
    id: "waited",
    header: "Waited",
    wide: true,
    right: true,
    optional: true,
    cell: (task) => <Elapsed from={task.created_at} to={task.started_at ?? task.completed_at} />,
  },
  {
    id: "duration",
    header: "Duration",
    right: true,
    cell: (task) => <Elapsed from={task.started_at} to={task.completed_at} />,
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
        <span className="text-dim">–</span>
      ),
  },
  { id: "id", header: "Id", optional: true, cell: (task) => <code className="text-xs">{task.task_id}</code> },
  { id: "reason", header: "Reason", optional: true, cell: (task) => task.reason },
  { id: "priority", header: "Priority", optional: true, right: true, cell: (task) => task.priority },
  { id: "group", header: "Group", optional: true, cell: (task) => task.group },
  {
    id: "deduped",
    header: "Deduped from",
    optional: true,
    cell: (task) => task.deduped_from && shortId(task.deduped_from),
  },
];

export const taskKey = (task: Task) => task.task_id;
export const taskVersion = (task: Task) => `${task.state} ${task.bot_id}`;

export function TasksPage() {
  const search = useSearch({ strict: false }) as Search;
  const navigate = useNavigate();
  const { data: session } = useSession();
  const [selected, setSelected] = useState<Set<string>>(new Set());
  const tasks = useTaskPages(search);
  const rows = useMemo(() => tasks.data?.pages.flatMap((page) => page.tasks) ?? [], [tasks.data]);
  const shown = new Set(rows.map(taskKey));
  const chosen = new Set([...selected].filter((key) => shown.has(key)));
  return (
    <Page title="Tasks">
      <Filters search={search} />
      <StateCounts search={search} />
      {mayWrite(session) && (
        <Bulk search={search} selected={chosen} rows={rows} onDone={() => setSelected(new Set())} />
      )}
      {tasks.error && rows.length === 0 ? (
        <Failed error={tasks.error} what="This list" retry={() => void tasks.refetch()} />
      ) : tasks.isPending ? (
        <Loading />
      ) : (
        <DataTable
          name="tasks"
          caption="Tasks, newest first"
          columns={TASK_COLUMNS}
          rows={rows}
          rowKey={taskKey}
          version={taskVersion}
          selected={chosen}
          {...(mayWrite(session) ? { onSelect: setSelected } : {})}
          onOpen={(task) => void navigate({ to: "/tasks/$id", params: { id: task.task_id } })}
          empty={<NoTasks filtered={Object.keys(search).length > 0} more={tasks.hasNextPage} />}
        />
      )}
      {tasks.hasNextPage && (
        <div className="text-center">
          <Button disabled={tasks.isFetchingNextPage} onClick={() => void tasks.fetchNextPage()}>
            {tasks.isFetchingNextPage ? "Loading …" : "Older tasks"}
          </Button>
        </div>
      )}
    </Page>
  );
}

function NoTasks({ filtered, more }: { filtered: boolean; more: boolean }) {
  if (more) return <Empty title="None of the newest tasks matches">Search further among older tasks:</Empty>;
  if (filtered) {
    return (
      <Empty title="No task matches these filters">
        Remove a filter above. Names are compared as a whole; tags are written key:value.
      </Empty>
    );
  }
  return (
    <Empty title="There are no tasks yet" command="myrmidon run -- echo hello">
      Run the first one from a terminal:
    </Empty>
  );
}

const PAGE = 100;
/** While older pages are open, changes refresh the first page only: the others would be fetched again each time. */
const MAX_LIVE_PAGES = 3;

const MAX_SCANS = 4;

/** A page of the list. The server looks at some 20,000 tasks in one call, so that a rare filter can need several. */
async function fetchPage(
  filters: Record<string, string | string[]>,
  cursor: string,
  signal: AbortSignal,
): Promise<Schemas["TaskList"]> {
  const found: Schemas["TaskList"] = { tasks: [], cursor };
  for (let scan = 0; scan < MAX_SCANS; scan++) {
    const query = { ...filters, limit: PAGE - found.tasks.length, cursor: found.cursor };
    const page = await get("/api/v1/tasks", { query, signal });
    found.tasks = [...found.tasks, ...page.tasks];
    found.cursor = page.cursor;
    if (!page.cursor || found.tasks.length >= PAGE) break;
  }
  return found;
}

function useTaskPages(search: Search) {
  const client = useQueryClient();
  const connection = useConnection();
  const filters = apiFilters(search);
  const key = ["tasks", filters];
  const keyText = JSON.stringify(key);
  const query = useInfiniteQuery<Schemas["TaskList"], ApiError, { pages: Schemas["TaskList"][] }, unknown[], string>({
    queryKey: key,
    queryFn: ({ pageParam, signal }) => fetchPage(filters, pageParam, signal),
    initialPageParam: "",
    getNextPageParam: (page) => page.cursor,
    placeholderData: (before) => before,
    refetchInterval: connection === "live" ? false : 2000,
  });
  const live = (query.data?.pages.length ?? 0) <= MAX_LIVE_PAGES;
  useEffect(() => {
    if (!live) return;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const stop = subscribe(["tasks"], () => {
      timer ??= setTimeout(() => {
        timer = undefined;
        refreshList(client, JSON.parse(keyText) as unknown[]);
      }, 500);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [client, keyText, live]);
  return query;
}
