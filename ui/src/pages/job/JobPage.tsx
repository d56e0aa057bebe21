import { Link, Outlet, useParams } from "@tanstack/react-router";
import { get } from "../../api/client";
import { useLive } from "../../api/live";
import { Command } from "../../components/Copy";
import { Loaded } from "../../components/Feedback";
import { Page } from "../../components/Page";
import { StateBadge } from "../../components/StateBadge";
import { StateBar } from "../../components/StateBar";
import { Tags } from "../../components/Tags";
import { Elapsed, Time } from "../../components/Time";
import { commandLine } from "../../lib/command";
import { plural } from "../../lib/format";
import { isFinal } from "../../lib/states";
import { type Job, JobContext } from "./context";
import { JobActions } from "./JobActions";

const TABS = [
  { to: "/jobs/$id", label: "Failures" },
  { to: "/jobs/$id/graph", label: "Graph" },
  { to: "/jobs/$id/time", label: "Time" },
  { to: "/jobs/$id/tasks", label: "Tasks" },
] as const;

export function JobPage() {
  const { id } = useParams({ strict: false }) as { id: string };
  const job = useLive<Job>({
    key: ["job", id],
    fetch: (signal) => get("/api/v1/jobs/{id}", { path: { id }, signal }),
    topics: [`job:${id}`],
    settled: (data) => isFinal(data.state) && !data.busy,
  });
  return (
    <Loaded query={job} what={`The job ${id}`}>
      {(data) => (
        <JobContext.Provider value={data}>
          <JobView job={data} />
        </JobContext.Provider>
      )}
    </Loaded>
  );
}

function JobView({ job }: { job: Job }) {
  const failed = job.num_failed;
  return (
    <Page
      title={job.name || job.job_id}
      heading={
        <span className="inline-flex flex-wrap items-center gap-2">
          <StateBadge state={job.state} large />
          <span className="[overflow-wrap:anywhere]">{job.name || "(no name)"}</span>
        </span>
      }
      crumbs={
        <>
          <Link to="/jobs">Jobs</Link>
          {job.name && (
            <>
              {" / "}
              <Link to="/jobs/name/$name" params={{ name: job.name }}>
                {job.name}
              </Link>
            </>
          )}
          {" / "}
          {job.job_id}
        </>
      }
      actions={<JobActions job={job} />}
    >
      <StateBar counts={job.counts} />
      <div className="flex flex-wrap gap-x-4 gap-y-1 text-dim">
        <span>{plural(job.num_tasks, "task")}</span>
        <span>
          created <Time at={job.created_at} />
        </span>
        <span>
          {job.ended_at ? "took" : "running for"} <Elapsed from={job.created_at} to={job.ended_at} />
        </span>
        {job.num_retries > 0 && <span>{plural(job.num_retries, "retry", "retries")}</span>}
        {job.busy && <span className="text-wait">a change is being carried out …</span>}
        <span>group {job.group}</span>
        {job.external_id && <span>external id {job.external_id}</span>}
        {job.tags.length > 0 && <Tags tags={job.tags} to="/jobs" />}
      </div>
      <FirstFailure job={job} />
      <nav aria-label="Views of this job" className="border-b border-line">
        <ul className="flex">
          {TABS.map(({ to, label }) => (
            <li key={to}>
              <Link
                to={to}
                params={{ id: job.job_id }}
                activeOptions={{ exact: true, includeSearch: false }}
                className="block border-b-2 border-transparent px-3 py-1.5 text-dim hover:text-text hover:no-underline [&.active]:border-accent [&.active]:text-text"
              >
                {label}
                {label === "Failures" && failed > 0 && <span className="ml-1 text-bad">{failed}</span>}
              </Link>
            </li>
          ))}
        </ul>
      </nav>
      <Outlet />
      <JobMeta job={job} />
      <Command text={commandLine("myrmidon", "job", "watch", job.job_id)} />
    </Page>
  );
}

/** The task that has stopped the job, or why the job has ended otherwise. */
function FirstFailure({ job }: { job: Job }) {
  const first = job.first_failure;
  if (!first) return job.error ? <p className="text-bad [overflow-wrap:anywhere]">{job.error}</p> : null;
  return (
    <p className="[overflow-wrap:anywhere]">
      The first failure was{" "}
      <Link to="/tasks/$id" params={{ id: first.task_id }} className="font-medium text-bad">
        {first.label}
      </Link>
      .
    </p>
  );
}

/** Small texts that the tasks of the job have written. */
function JobMeta({ job }: { job: Job }) {
  const id = job.job_id;
  const meta = useLive({
    key: ["job-meta", id],
    fetch: (signal) => get("/api/v1/jobs/{id}/meta", { path: { id }, signal }),
    topics: [`job:${id}`],
  });
  const texts = [...Object.entries(meta.data?.values ?? {}), ...Object.entries(job.metadata)];
  if (texts.length === 0) return null;
  return (
    <dl className="flex flex-wrap gap-x-4 gap-y-1 text-dim">
      {texts.map(([name, value]) => (
        <div key={name} className="flex gap-1">
          <dt>{name}:</dt>
          <dd className="text-text [overflow-wrap:anywhere]">{value}</dd>
        </div>
      ))}
    </dl>
  );
}
