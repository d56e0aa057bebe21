import { Link } from "@tanstack/react-router";
import { Facts, Panel } from "../../components/Panel";
import { Tags } from "../../components/Tags";
import { Elapsed, Time } from "../../components/Time";
import { showCost } from "../../lib/format";
import { ownTags, ownTagsFirst } from "../../lib/tags";
import type { Task } from "./TaskPage";

/** When, who, for whom, at which cost. */
export function TaskFacts({ task }: { task: Task }) {
  const { request, result } = task;
  const cost = task.runs.reduce((sum, run) => sum + run.cost_usd, 0);
  const ended = result.completed_at ?? result.abandoned_at;
  return (
    <Panel title="Facts">
      <Facts
        rows={[
          ["Created", <Time key="t" at={request.created_at} />],
          [
            "Waited",
            result.started_at && result.ready_at ? (
              <Elapsed key="w" from={result.ready_at} to={result.started_at} />
            ) : null,
          ],
          ["Started", result.started_at && <Time key="s" at={result.started_at} />],
          ["Ended", ended && <Time key="e" at={ended} />],
          ["User", request.user],
          ["Submitted by", request.authenticated],
          ["Group", task.group],
          ["Priority", request.priority],
          ["Held", result.held && "yes: it does not start until it is released"],
          ["Retries", result.num_retries > 0 && `${result.num_retries} of ${request.retries}`],
          ["Reruns", result.num_reruns > 0 && result.num_reruns],
          [
            "Deduped from",
            result.deduped_from && (
              <Link key="d" to="/tasks/$id" params={{ id: result.deduped_from }} className="text-accent">
                {result.deduped_from}
              </Link>
            ),
          ],
          ["Cost", cost > 0 && showCost(cost)],
          ["Saved", result.cost_saved_usd && showCost(result.cost_saved_usd)],
          ["Deadline", <Time key="l" at={request.deadline_at} />],
          [
            "Function",
            request.function && (
              <Link key="f" to="/functions/$name" params={{ name: request.function }} className="text-accent">
                {request.function}
              </Link>
            ),
          ],
          ["External id", request.external_id],
          ["Tags", <Tags key="g" tags={ownTagsFirst(request.tags)} max={Math.min(12, ownTags(request.tags).length)} />],
        ]}
      />
    </Panel>
  );
}
