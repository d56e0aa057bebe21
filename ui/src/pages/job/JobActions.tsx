import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { post, remove } from "../../api/client";
import { mayWrite, useSession } from "../../api/session";
import { Action } from "../../components/Action";
import { commandLine } from "../../lib/command";
import { plural } from "../../lib/format";
import { isFinal } from "../../lib/states";
import type { Job } from "./context";

export function JobActions({ job }: { job: Job }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const { data: session } = useSession();
  const [priority, setPriority] = useState(100);
  if (!mayWrite(session)) return null;
  const id = job.job_id;
  const path = { id };
  const refresh = () => client.invalidateQueries();
  const ended = isFinal(job.state);
  const runsAgain = job.state !== "CANCELLED"; // a cancelled job stays cancelled
  const command = (...words: string[]) => commandLine("myrmidon", "job", ...words);
  return (
    <>
      {runsAgain && job.num_failed > 0 && (
        <Action
          label="Rerun failed part"
          explanation={<RerunPreview id={id} full={false} />}
          command={command("rerun", id)}
          run={() => post("/api/v1/jobs/{id}/rerun", { path, body: {} }).then(refresh)}
        />
      )}
      {runsAgain && ended && (
        <Action
          label="Rerun all"
          explanation={<RerunPreview id={id} full />}
          command={command("rerun", "--full", id)}
          run={() => post("/api/v1/jobs/{id}/rerun", { path, body: { full: true } }).then(refresh)}
        />
      )}
      {!ended && (
        <>
          <Action
            label="Hold"
            explanation="Tasks that have not started do not start until the job is released. Running tasks go on."
            command={command("hold", id)}
            run={() => post("/api/v1/jobs/{id}/hold", { path, body: {} }).then(refresh)}
          />
          <Action
            label="Release"
            explanation="Held tasks may start again."
            command={command("release", id)}
            run={() => post("/api/v1/jobs/{id}/release", { path, body: {} }).then(refresh)}
          />
          <Action
            label="Priority"
            explanation="Tasks that have not ended get a new priority; 0 is the highest, 255 the lowest."
            command={command("priority", id, String(priority))}
            run={() => post("/api/v1/jobs/{id}/priority", { path, body: { priority } }).then(refresh)}
          >
            <input
              type="number"
              min={0}
              max={255}
              aria-label="Priority"
              value={priority}
              onChange={(event) => setPriority(Number(event.target.value))}
            />
          </Action>
          {!job.sealed && (
            <Action
              label="Seal"
              explanation="No more tasks can be added to this job. This cannot be undone."
              command={command("seal", id)}
              run={() => post("/api/v1/jobs/{id}/seal", { path, body: {} }).then(refresh)}
            />
          )}
          <Action
            label="Cancel"
            danger
            explanation="All tasks of this job that have not ended are cancelled; running commands get SIGTERM."
            command={command("cancel", id)}
            run={() => post("/api/v1/jobs/{id}/cancel", { path, body: {} }).then(refresh)}
          />
        </>
      )}
      {ended && (
        <Action
          label="Delete"
          danger
          explanation="The job is deleted with its tasks, their values and logs. This cannot be undone."
          command={command("delete", id)}
          run={() => remove("/api/v1/jobs/{id}", { path }).then(() => navigate({ to: "/jobs" }))}
        />
      )}
    </>
  );
}

/** What would run again, asked from the server without changing anything. */
function RerunPreview({ id, full }: { id: string; full: boolean }) {
  const preview = useQuery({
    queryKey: ["rerun-preview", id, full],
    queryFn: () => post("/api/v1/jobs/{id}/rerun", { path: { id }, body: { full, dry_run: true } }),
    staleTime: 0,
    retry: false,
  });
  if (preview.error) return <>{preview.error.message}</>;
  if (!preview.data) return <>Counting what would run again …</>;
  const { num_tasks, labels } = preview.data;
  const first = (labels ?? []).slice(0, 8).join(", ");
  return (
    <>
      <strong>{plural(num_tasks ?? 0, "task")}</strong> will run again: {first}
      {(labels ?? []).length > 8 ? ", …" : ""}
    </>
  );
}
