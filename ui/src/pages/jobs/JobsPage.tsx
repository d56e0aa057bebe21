import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useMemo } from "react";
import { type ApiError, get, type Schemas } from "../../api/client";
import { refreshList, subscribe, useConnection, useLive } from "../../api/live";
import { Button } from "../../components/Button";
import { type Column, DataTable } from "../../components/DataTable";
import { Empty, Failed, Loaded, Loading } from "../../components/Feedback";
import { Page } from "../../components/Page";
import { RunBars } from "../../components/RunBars";
import { StateBadge, StateIcon } from "../../components/StateBadge";
import { StateBar } from "../../components/StateBar";
import { Tags } from "../../components/Tags";
import { Elapsed, Time } from "../../components/Time";
import { showNumber } from "../../lib/format";
import { listOf, type Search, textOf } from "../../lib/search";
import { JOB_STATES, nameOf } from "../../lib/states";
import { fetchNames, type JobName, trendOf } from "./names";

type Job = Schemas["JobSummary"];

export const JOB_COLUMNS: Column<Job>[] = [
  { id: "state", header: "State", cell: (job) => <StateBadge state={job.state} /> },
  {
    id: "name",
    header: "Name",
    className: "w-full min-w-36",
    cell: (job) => (
      <Link to="/jobs/$id" params={{ id: job.job_id }} className="font-medium [overflow-wrap:anywhere]">
        {job.name || "(no name)"}
      </Link>
    ),
  },
  {
    id: "tasks",
    header: "Tasks",
    className: "min-w-32",
    cell: (job) => (
      <div>
        <StateBar
          legend={false}
          counts={{
            SUCCEEDED: job.num_succeeded,
            FAILED: job.num_failed,
            WAITING: job.num_tasks - job.num_succeeded - job.num_failed,
          }}
        />
        <span className="text-xs text-dim">
          {showNumber(job.num_succeeded)} of {showNumber(job.num_tasks)}
          {job.num_failed > 0 && `, ${showNumber(job.num_failed)} failed`}
        </span>
      </div>
    ),
  },
  { id: "tags", header: "Tags", wide: true, cell: (job) => <Tags tags={job.tags} to="/jobs" max={3} oneLine /> },
  { id: "created", header: "Created", cell: (job) => <Time at={job.created_at} /> },
  {
    id: "duration",
    header: "Duration",
    right: true,
    wide: true,
    cell: (job) => <Elapsed from={job.created_at} to={job.ended_at} />,
  },
  { id: "id", header: "Id", optional: true, cell: (job) => <code className="text-xs">{job.job_id}</code> },
  { id: "group", header: "Group", optional: true, cell: (job) => job.group },
];
const rowKey = (job: Job) => job.job_id;
const rowVersion = (job: Job) => `${job.state} ${job.num_succeeded} ${job.num_failed}`;

export function JobsPage() {
  const search = useSearch({ strict: false }) as Search;
  const byName = textOf(search, "view") === "names";
  return (
    <Page
      title="Jobs"
      actions={
        <nav aria-label="Views" className="flex gap-1">
          <Link to="/jobs" search={{}} className={`rounded px-2 py-0.5 ${byName ? "text-dim" : "bg-accent-soft"}`}>
            Newest
          </Link>
          <Link
            to="/jobs"
            search={{ view: "names" }}
            className={`rounded px-2 py-0.5 ${byName ? "bg-accent-soft" : "text-dim"}`}
          >
            By name
          </Link>
        </nav>
      }
    >
      {byName ? <ByName /> : <Newest search={search} />}
    </Page>
  );
}

function Newest({ search }: { search: Search }) {
  const navigate = useNavigate();
  const client = useQueryClient();
  const connection = useConnection();
  const states = listOf(search, "state");
  const filters = {
    state: states,
    tag: listOf(search, "tag"),
    name: textOf(search, "name"),
    mine: textOf(search, "mine"),
  };
  const keyText = JSON.stringify(["jobs", filters]);
  const jobs = useInfiniteQuery<Schemas["JobList"], ApiError, { pages: Schemas["JobList"][] }, unknown[], string>({
    queryKey: ["jobs", filters],
    queryFn: ({ pageParam, signal }) =>
      get("/api/v1/jobs", { query: { ...filters, limit: 50, cursor: pageParam }, signal }),
    initialPageParam: "",
    getNextPageParam: (page) => page.cursor,
    placeholderData: (before) => before,
    refetchInterval: connection === "live" ? false : 3000,
  });
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const stop = subscribe(["jobs"], () => {
      timer ??= setTimeout(() => {
        timer = undefined;
        refreshList(client, JSON.parse(keyText) as unknown[]);
      }, 500);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [client, keyText]);
  const rows = useMemo(() => jobs.data?.pages.flatMap((page) => page.jobs) ?? [], [jobs.data]);
  const counts = jobs.data?.pages[0]?.counts ?? {};
  const set = (change: Search) => void navigate({ to: "/jobs", search: { ...search, ...change } });
  return (
    <>
      <div className="flex flex-wrap items-center gap-2">
        <form
          className="contents"
          onSubmit={(event) => {
            event.preventDefault();
            set({ name: String(new FormData(event.currentTarget).get("name") ?? "").trim() });
          }}
        >
          <input
            key={filters.name}
            name="name"
            data-filter
            aria-label="Filter by name"
            placeholder="name"
            defaultValue={filters.name}
          />
        </form>
        {JOB_STATES.map((state) => (
          <button
            key={state}
            type="button"
            aria-pressed={states.includes(state)}
            onClick={() =>
              set({ state: states.includes(state) ? states.filter((one) => one !== state) : [...states, state] })
            }
            className={`inline-flex h-7 items-center gap-1 rounded border px-2 ${states.includes(state) ? "border-accent bg-accent-soft" : "border-line hover:bg-panel"}`}
          >
            <StateIcon state={state} />
            {nameOf(state)} <span className="text-dim">{showNumber(counts[state] ?? 0)}</span>
          </button>
        ))}
        <label className="flex items-center gap-1">
          <input
            type="checkbox"
            checked={filters.mine === "true"}
            onChange={(event) => set({ mine: event.target.checked ? "true" : "" })}
          />
          mine
        </label>
        {filters.tag.map((tag) => (
          <Button key={tag} onClick={() => set({ tag: filters.tag.filter((one) => one !== tag) })}>
            {tag} <span aria-hidden="true">×</span>
          </Button>
        ))}
      </div>
      {jobs.error && rows.length === 0 ? (
        <Failed error={jobs.error} what="This list" retry={() => void jobs.refetch()} />
      ) : jobs.isPending ? (
        <Loading />
      ) : (
        <DataTable
          name="jobs"
          caption="Jobs, newest first"
          columns={JOB_COLUMNS}
          rows={rows}
          rowKey={rowKey}
          version={rowVersion}
          onOpen={(job) => void navigate({ to: "/jobs/$id", params: { id: job.job_id } })}
          empty={
            Object.keys(search).length > 0 ? (
              <Empty title="No job matches these filters">Remove a filter above. Names are compared as a whole.</Empty>
            ) : (
              <Empty title="There are no jobs yet" command="myrmidon job submit examples/build-and-test.yaml --watch">
                A job is a graph of tasks. Submit the example:
              </Empty>
            )
          }
        />
      )}
      {jobs.hasNextPage && (
        <div className="text-center">
          <Button disabled={jobs.isFetchingNextPage} onClick={() => void jobs.fetchNextPage()}>
            Older jobs
          </Button>
        </div>
      )}
    </>
  );
}

const NAME_COLUMNS: Column<JobName>[] = [
  { id: "last", header: "Last", wide: true, cell: (name) => name.runs[0] && <StateBadge state={name.runs[0].state} /> },
  {
    id: "name",
    header: "Name",
    className: "w-full min-w-36",
    cell: ({ name }) =>
      name ? (
        <Link to="/jobs/name/$name" params={{ name }} className="font-medium [overflow-wrap:anywhere]">
          {name}
        </Link>
      ) : (
        "(no name)"
      ),
  },
  { id: "runs", header: "Last 30 runs", cell: (name) => <RunBars runs={name.runs} /> },
  { id: "trend", header: "Trend", right: true, wide: true, cell: (name) => <Trend value={trendOf(name.runs)} /> },
  {
    id: "failed",
    header: "Failed",
    right: true,
    wide: true,
    cell: ({ runs }) => `${runs.filter((run) => run.state === "FAILED").length} of ${runs.length}`,
  },
  { id: "at", header: "Last run", wide: true, cell: (name) => <Time at={name.runs[0]?.created_at} /> },
];

function Trend({ value }: { value: number | null }) {
  if (value === null) return <span className="text-dim">–</span>;
  const percent = Math.round((value - 1) * 100);
  if (Math.abs(percent) < 10) return <span className="text-dim">steady</span>;
  return percent > 0 ? (
    <span className="text-warn">{percent} % slower</span>
  ) : (
    <span className="text-good">{-percent} % faster</span>
  );
}

const nameKey = (name: JobName) => name.name;

function ByName() {
  const navigate = useNavigate();
  const names = useLive<JobName[]>({ key: ["job-names"], fetch: fetchNames, topics: ["jobs"], keepPrevious: true });
  return (
    <Loaded query={names} what="The list of names">
      {(rows) => (
        <DataTable
          name="job-names"
          caption="Jobs by name"
          columns={NAME_COLUMNS}
          rows={rows}
          rowKey={nameKey}
          onOpen={({ name }) => void navigate({ to: "/jobs/name/$name", params: { name } })}
          empty={
            <Empty title="There are no jobs yet" command="myrmidon job submit examples/build-and-test.yaml --watch" />
          }
        />
      )}
    </Loaded>
  );
}
