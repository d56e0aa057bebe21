import { useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { get, post, remove, type Schemas } from "../../api/client";
import { useLive } from "../../api/live";
import { isAdmin, useSession } from "../../api/session";
import { Action } from "../../components/Action";
import { type Column, DataTable } from "../../components/DataTable";
import { Cut, Empty, Loaded, MOST } from "../../components/Feedback";
import { Page } from "../../components/Page";
import { Panel } from "../../components/Panel";
import { Time } from "../../components/Time";
import { asCurl } from "../../lib/command";
import { plural, showBytes } from "../../lib/format";

type Group = Schemas["GroupInfo"];
const rowKey = (group: Group) => group.name;

/** Resource groups, to which tasks, jobs and the values they make belong. */
export function ValuesPage() {
  const groups = useLive<Schemas["GroupList"]>({
    key: ["groups"],
    fetch: (signal) => get("/api/v1/groups", { query: { limit: MOST }, signal }),
    everyMs: 10_000,
  });
  const { data: session } = useSession();
  return (
    <Page title="Values" actions={isAdmin(session) && <NewGroup />}>
      <p className="text-dim">
        Values are what tasks of a job pass to each other. A shared value exists while a resource group or a job
        references it; the results of one job are on its page.
      </p>
      <SharedValues />
      <Panel title="Resource groups" flush>
        <Loaded query={groups} what="The list of resource groups">
          {(data) => (
            <>
              <DataTable
                name="groups"
                caption="Resource groups"
                columns={COLUMNS}
                rows={data.groups}
                rowKey={rowKey}
                empty={<Empty title="There are no resource groups" />}
              />
              {data.cursor && <Cut command="myrmidon resource-group list" />}
            </>
          )}
        </Loaded>
      </Panel>
    </Page>
  );
}

type Value = Schemas["SharedValueInfo"];
const valueKey = (value: Value) => value.id;

const VALUE_COLUMNS: Column<Value>[] = [
  {
    id: "type",
    header: "Type",
    className: "w-full min-w-32",
    cell: (value) => <code className="text-xs [overflow-wrap:anywhere]">{value.type}</code>,
  },
  { id: "size", header: "Size", right: true, cell: (value) => showBytes(value.size) },
  { id: "groups", header: "Groups", right: true, cell: (value) => value.num_groups },
  { id: "jobs", header: "Jobs", right: true, cell: (value) => value.num_jobs },
  { id: "created", header: "Created", wide: true, cell: (value) => <Time at={value.created_at} /> },
  { id: "id", header: "Id", optional: true, cell: (value) => <code className="text-xs">{value.id}</code> },
  { id: "digest", header: "Digest", optional: true, cell: (value) => <code className="text-xs">{value.digest}</code> },
];

function SharedValues() {
  const values = useLive<Schemas["SharedValueList"]>({
    key: ["values"],
    fetch: (signal) => get("/api/v1/values", { query: { limit: 200 }, signal }),
    everyMs: 10_000,
  });
  return (
    <Panel title="Shared values, newest first" flush>
      <Loaded query={values} what="The list of values">
        {(data) => (
          <>
            {data.totals.length > 0 && (
              <p className="px-3 py-2 text-dim">
                {data.totals
                  .map((total) => `${total.group}: ${plural(total.num_values, "value")}, ${showBytes(total.num_bytes)}`)
                  .join(" · ")}
              </p>
            )}
            <DataTable
              name="values"
              caption="Shared values"
              columns={VALUE_COLUMNS}
              rows={data.values}
              rowKey={valueKey}
              empty={
                <Empty title="There are no shared values">
                  Functions that share a value with later tasks make them.
                </Empty>
              }
            />
          </>
        )}
      </Loaded>
    </Panel>
  );
}

const COLUMNS: Column<Group>[] = [
  {
    id: "name",
    header: "Name",
    className: "w-full",
    cell: (group) => (
      <>
        <Link to="/tasks" search={{ group: group.name }} className="font-medium">
          {group.name}
        </Link>
        {group.deleting && <span className="ml-2 text-wait">is being deleted</span>}
      </>
    ),
  },
  { id: "created", header: "Created", cell: (group) => <Time at={group.created_at} /> },
  { id: "delete", header: "", cell: (group) => <DeleteGroup name={group.name} /> },
];

function NewGroup() {
  const client = useQueryClient();
  const [name, setName] = useState("");
  const body = { name: name.trim() };
  return (
    <Action
      label="New group"
      explanation="Tokens, tasks and jobs can be bound to the new resource group."
      command={asCurl("POST", `${window.location.origin}/api/v1/groups`, body)}
      run={() => post("/api/v1/groups", { body }).then(() => client.invalidateQueries({ queryKey: ["groups"] }))}
    >
      <input
        aria-label="Name"
        placeholder="name"
        value={name}
        onChange={(event) => setName(event.target.value)}
        className="w-full"
      />
    </Action>
  );
}

function DeleteGroup({ name }: { name: string }) {
  const client = useQueryClient();
  const { data: session } = useSession();
  if (!isAdmin(session) || name === "default") return null;
  return (
    <Action
      label="Delete"
      danger
      explanation={`The resource group ${name} is deleted. Its tasks and jobs must have ended.`}
      command={asCurl("DELETE", `${window.location.origin}/api/v1/groups/${encodeURIComponent(name)}`)}
      run={() =>
        remove("/api/v1/groups/{name}", { path: { name } }).then(() =>
          client.invalidateQueries({ queryKey: ["groups"] }),
        )
      }
    />
  );
}
