import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { callJson, type Schemas } from "../../api/client";
import { Action } from "../../components/Action";
import { commandLine } from "../../lib/command";
import { plural } from "../../lib/format";
import { listOf, type Search } from "../../lib/search";
import { isFinal } from "../../lib/states";
import { fetchCounts } from "./StateCounts";

interface BatchAnswer {
  num_tasks: number;
  num_changed: number;
  skipped: { task_id: string; why: string }[];
}

interface Props {
  search: Search;
  selected: ReadonlySet<string>;
  rows: Schemas["TaskSummary"][];
  onDone: () => void;
}

/** Cancel or rerun the selected tasks, or cancel all tasks that have the tags of the filter. */
export function Bulk({ search, selected, rows, onDone }: Props) {
  const client = useQueryClient();
  const [kill, setKill] = useState(true);
  const [said, setSaid] = useState("");
  const chosen = rows.filter((row) => selected.has(row.task_id));
  const live = chosen.filter((row) => !isFinal(row.state));
  const ended = chosen.filter((row) => isFinal(row.state));
  const tags = listOf(search, "tag");
  const finish = (text: string) => {
    setSaid(text);
    onDone();
    void client.invalidateQueries({ queryKey: ["tasks"] });
  };
  const batch = async (action: "cancel" | "rerun", ids: string[]) => {
    const body = { action, task_ids: ids, ...(action === "cancel" ? { kill_running: kill } : {}) };
    const answer = await callJson<BatchAnswer>("post", "/api/v1/tasks/batch", { body });
    const skipped = answer.skipped[0];
    finish(
      `${plural(answer.num_changed, "task")} changed.${skipped ? ` ${plural(answer.skipped.length, "task")} left as they were: ${skipped.why}` : ""}`,
    );
  };
  const killBox = (
    <label className="flex items-center gap-2">
      <input type="checkbox" checked={kill} onChange={(event) => setKill(event.target.checked)} />
      Stop those that are running, too
    </label>
  );
  return (
    <div className="flex flex-wrap items-center gap-2" aria-live="polite">
      {chosen.length > 0 && (
        <>
          <span className="text-dim">{plural(chosen.length, "task")} selected</span>
          {live.length > 0 && (
            <Action
              label={`Cancel ${live.length}`}
              danger
              explanation={`${plural(live.length, "selected task")} will be cancelled.${chosen.length > live.length ? ` The other ${chosen.length - live.length} have ended already.` : ""}`}
              command={commandLine(
                "myrmidon",
                "task",
                "cancel",
                !kill && "--no-kill",
                ...live.map((row) => row.task_id),
              )}
              run={() =>
                batch(
                  "cancel",
                  live.map((row) => row.task_id),
                )
              }
            >
              {killBox}
            </Action>
          )}
          {ended.length > 0 && (
            <Action
              label={`Rerun ${ended.length}`}
              explanation={`${plural(ended.length, "selected task")} will run again. Tasks that succeeded are left as they are.`}
              command={ended.map((row) => commandLine("myrmidon", "task", "rerun", row.task_id)).join("\n")}
              run={() =>
                batch(
                  "rerun",
                  ended.map((row) => row.task_id),
                )
              }
            />
          )}
        </>
      )}
      {chosen.length === 0 && tags.length > 0 && (
        <CancelTagged tags={tags} kill={kill} killBox={killBox} finish={finish} />
      )}
      {said && <span className="text-dim">{said}</span>}
    </div>
  );
}

function CancelTagged({
  tags,
  kill,
  killBox,
  finish,
}: {
  tags: string[];
  kill: boolean;
  killBox: React.ReactNode;
  finish: (text: string) => void;
}) {
  const run = async () => {
    const answer = await callJson<Schemas["CancelStarted"]>("post", "/api/v1/tasks/cancel", {
      body: { tags, kill_running: kill },
    });
    finish(`Cancelling ${plural(answer.num_tasks, "task")}.`);
  };
  return (
    <Action
      label="Cancel all with these tags"
      danger
      explanation={<TaggedPreview tags={tags} />}
      command={commandLine(
        "myrmidon",
        "task",
        "cancel",
        !kill && "--no-kill",
        ...tags.flatMap((tag) => ["--tag", tag]),
      )}
      run={run}
    >
      {killBox}
    </Action>
  );
}

function TaggedPreview({ tags }: { tags: string[] }) {
  return (
    <div>
      All tasks that have {tags.length === 1 ? "the tag" : "all the tags"} {tags.join(", ")} and have not ended will be
      cancelled: <Preview tags={tags} />
    </div>
  );
}

/** How many tasks an action on tags reaches. */
function Preview({ tags }: { tags: string[] }) {
  const counts = useQuery({
    queryKey: ["preview", tags],
    queryFn: ({ signal }) => fetchCounts({ tag: tags, state: ["WAITING", "READY", "RUNNING"] }, signal),
    staleTime: 0,
  });
  if (counts.error) return <span className="text-dim">their number is not known.</span>;
  if (!counts.data) return <span className="text-dim">counting …</span>;
  const n = Object.values(counts.data.counts).reduce((sum, one) => sum + one, 0);
  return (
    <strong>
      {plural(n, "task")}
      {counts.data.complete ? "" : " or more"}.
    </strong>
  );
}
