import { Link } from "@tanstack/react-router";
import { get, type Schemas } from "../../api/client";
import { useLive } from "../../api/live";
import { Command } from "../../components/Copy";
import { Loaded } from "../../components/Feedback";
import { Panel } from "../../components/Panel";
import { StateBadge } from "../../components/StateBadge";
import { Elapsed, Time } from "../../components/Time";
import { commandLine } from "../../lib/command";
import { plural } from "../../lib/format";
import type { Task } from "./TaskPage";

type Why = Schemas["TaskExplanation"];

/** Why a task does not run yet, or that it runs: which dimension removes how many bots, its position, its parents. */
export function WhyWaits({ task }: { task: Task }) {
  const id = task.task_id;
  const { result } = task;
  const why = useLive<Why>({
    key: ["why", id],
    fetch: (signal) => get("/api/v1/tasks/{id}/why", { path: { id }, signal }),
    topics: [`task:${id}`],
    everyMs: 5000,
  });
  if (result.state === "RUNNING") {
    return (
      <Panel title="Running">
        <p>
          On{" "}
          {result.bot_id && (
            <Link to="/bots/$id" params={{ id: result.bot_id }} className="text-accent">
              {result.bot_id}
            </Link>
          )}{" "}
          for <Elapsed from={result.started_at} />.{result.killing && " It is being stopped."}
        </p>
        {why.data?.silent_since && <Silent why={why.data} />}
      </Panel>
    );
  }
  return (
    <Panel title="Why it waits">
      <Loaded query={why} what="The explanation">
        {(data) => <Explanation why={data} />}
      </Loaded>
    </Panel>
  );
}

function Silent({ why }: { why: Why }) {
  return (
    <p className="mt-2 text-warn">
      The bot was last heard of <Time at={why.silent_since} />.{" "}
      {why.given_up_at && (
        <>
          If it stays silent, the run is given up <Time at={why.given_up_at} />.
        </>
      )}
    </p>
  );
}

function Explanation({ why }: { why: Why }) {
  return (
    <div className="space-y-3">
      <p className="font-medium">{why.summary}</p>
      {(why.position ?? 0) > 0 && (
        <p className="text-dim">{plural(why.position ?? 0, "task")} in its queue come before it.</p>
      )}
      {why.waiting_on.length > 0 && (
        <div>
          <div className="text-dim">It waits for {plural(why.waiting_on.length, "task")}:</div>
          <ul className="mt-1 space-y-0.5">
            {why.waiting_on.slice(0, 20).map((parent) => (
              <li key={parent}>
                <Link to="/tasks/$id" params={{ id: parent }} className="font-mono text-xs text-accent">
                  {parent}
                </Link>
              </li>
            ))}
          </ul>
        </div>
      )}
      {why.dimensions.length > 0 && <Funnel why={why} />}
      {why.unavailable.length > 0 && (
        <div>
          <div className="text-dim">Bots that match but take no tasks now:</div>
          <ul className="mt-1 space-y-1">
            {why.unavailable.map((bot) => (
              <li key={bot.bot_id} className="flex flex-wrap items-center gap-x-2">
                <StateBadge state={bot.state} />
                <Link to="/bots/$id" params={{ id: bot.bot_id }} className="text-accent">
                  {bot.bot_id}
                </Link>
                <span className="text-dim">
                  seen <Time at={bot.last_seen_at} />
                </span>
                {bot.reason && <span className="w-full pl-5 text-dim">{bot.reason}</span>}
              </li>
            ))}
          </ul>
        </div>
      )}
      <Command text={commandLine("myrmidon", "task", "why", why.task_id)} />
    </div>
  );
}

/** How many bots are left after each dimension. */
function Funnel({ why }: { why: Why }) {
  const first = why.dimensions[0];
  const all = Math.max(1, (first?.removes ?? 0) + (first?.left ?? 0));
  return (
    <table className="w-full">
      <caption className="mb-1 text-left text-dim">Which bots match (of {plural(all, "bot")})</caption>
      <thead className="sr-only">
        <tr>
          <th scope="col">Dimension</th>
          <th scope="col">Bots left</th>
        </tr>
      </thead>
      <tbody>
        {why.dimensions.map((step) => (
          <tr key={step.dimension}>
            <td className="w-full py-0.5 pr-3 align-top">
              <code className="text-xs [overflow-wrap:anywhere]">{step.dimension}</code>
              <div className="mt-0.5 h-1 bg-off-soft">
                <div
                  className={`h-1 ${step.left === 0 ? "bg-bad" : "bg-accent"}`}
                  style={{ width: `${(100 * step.left) / all}%` }}
                />
              </div>
            </td>
            <td className={`whitespace-nowrap text-right align-top ${step.left === 0 ? "font-semibold text-bad" : ""}`}>
              {step.left} left
              {step.removes > 0 && <span className="text-dim"> (−{step.removes})</span>}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
