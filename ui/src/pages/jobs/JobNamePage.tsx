import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { ApiError, callJson, get, type Schemas } from "../../api/client";
import { useLive } from "../../api/live";
import { DataTable } from "../../components/DataTable";
import { Empty, Loaded } from "../../components/Feedback";
import { Page } from "../../components/Page";
import { Panel } from "../../components/Panel";
import { RunBars } from "../../components/RunBars";
import { JOB_COLUMNS } from "./JobsPage";
import { type Flaky, flakyWords } from "./names";

const rowKey = (job: Schemas["JobSummary"]) => job.job_id;

/** All jobs of one name: their last runs, and which of their tasks fail sometimes. */
export function JobNamePage() {
  const { name } = useParams({ strict: false }) as { name: string };
  const navigate = useNavigate();
  const jobs = useLive<Schemas["JobList"]>({
    key: ["jobs-named", name],
    fetch: (signal) => get("/api/v1/jobs", { query: { name, limit: 60 }, signal }),
    topics: ["jobs"],
    keepPrevious: true,
  });
  return (
    <Page
      title={name}
      crumbs={
        <>
          <Link to="/jobs">Jobs</Link> /{" "}
          <Link to="/jobs" search={{ view: "names" }}>
            by name
          </Link>{" "}
          / {name}
        </>
      }
    >
      <Loaded query={jobs} what={`The name ${name}`}>
        {(data) => (
          <div className="space-y-3">
            <Panel title="Last 30 runs">
              <RunBars
                runs={data.jobs.slice(0, 30).map((job) => ({ ...job, ended_at: job.ended_at ?? null }))}
                height={56}
              />
            </Panel>
            <FlakyLabels name={name} />
            <DataTable
              name="jobs"
              caption={`Jobs with the name ${name}`}
              columns={JOB_COLUMNS}
              rows={data.jobs}
              rowKey={rowKey}
              onOpen={(job) => void navigate({ to: "/jobs/$id", params: { id: job.job_id } })}
              empty={<Empty title={`No job has the name ${name}`} />}
            />
          </div>
        )}
      </Loaded>
    </Page>
  );
}

function FlakyLabels({ name }: { name: string }) {
  const flaky = useQuery<Flaky | null, ApiError>({
    queryKey: ["flaky", name],
    queryFn: async ({ signal }) => {
      try {
        return await callJson<Flaky>("get", "/api/v1/job-names/flaky", { query: { name }, signal });
      } catch (error) {
        if (error instanceof ApiError && error.status === 404) return null;
        throw error;
      }
    },
    staleTime: 30_000,
  });
  if (!flaky.data) return flaky.error ? <p className="text-dim">{flaky.error.message}</p> : null;
  const labels = flaky.data.labels;
  return (
    <Panel title="Tasks that fail sometimes">
      {labels.length === 0 ? (
        <p className="text-dim">No task has failed in the last {flaky.data.num_jobs} jobs.</p>
      ) : (
        <ul className="space-y-1">
          {labels.map((label) => (
            <li key={label.label}>
              <span className="font-medium">{label.label}</span> <span className="text-dim">{flakyWords(label)}</span>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}
