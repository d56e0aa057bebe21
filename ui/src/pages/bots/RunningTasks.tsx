import { Link } from "@tanstack/react-router";
import { Fragment } from "react";
import type { Schemas } from "../../api/client";

/** The tasks that a bot works on, by their names, each with a link to its run. */
export function RunningTasks({ tasks = [] }: { tasks?: Schemas["BotTask"][] | undefined }) {
  return tasks.map(({ run, name }, at) => (
    <Fragment key={run}>
      {at > 0 && ", "}
      <Link to="/tasks/$id" params={{ id: run }} title={run} className="text-accent [overflow-wrap:anywhere]">
        {name || run}
      </Link>
    </Fragment>
  ));
}
