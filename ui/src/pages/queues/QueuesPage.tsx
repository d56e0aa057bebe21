import { useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { get, put, type Schemas } from "../../api/client";
import { useLive } from "../../api/live";
import { isAdmin, useSession } from "../../api/session";
import { Action } from "../../components/Action";
import { type Column, DataTable } from "../../components/DataTable";
import { Empty, Loaded } from "../../components/Feedback";
import { Page } from "../../components/Page";
import { Panel } from "../../components/Panel";
import { Time } from "../../components/Time";
import { asCurl } from "../../lib/command";
import { plural, showNumber } from "../../lib/format";
import { showDuration } from "../../lib/time";

type Queue = Schemas["QueueInfo"];
type Pool = Schemas["PoolInfo"];

const QUEUE_COLUMNS: Column<Queue>[] = [
  { id: "pool", header: "Pool", cell: (queue) => queue.pool },
  {
    id: "dimensions",
    header: "Dimensions",
    className: "w-full min-w-40",
    cell: (queue) => (
      <span className="font-mono text-xs [overflow-wrap:anywhere]">
        {Object.entries(queue.dimensions)
          .filter(([key]) => key !== "pool")
          .map(([key, values]) => `${key}=${values.join("|")}`)
          .join(" ") || "any bot of the pool"}
      </span>
    ),
  },
  {
    id: "ready",
    header: "Waiting",
    right: true,
    cell: (queue) => (
      <Link
        to="/tasks"
        search={{ pool: queue.pool, state: ["READY"] }}
        className={queue.num_ready > 0 ? "font-semibold" : "text-dim"}
      >
        {showNumber(queue.num_ready)}
      </Link>
    ),
  },
  { id: "oldest", header: "Oldest", right: true, cell: (queue) => <Time at={queue.oldest_at} /> },
  {
    id: "bots",
    header: "Bots that match",
    right: true,
    cell: (queue) =>
      queue.num_bots === 0 && queue.num_ready > 0 ? (
        <span className="font-semibold text-bad">none</span>
      ) : (
        showNumber(queue.num_bots)
      ),
  },
  { id: "used", header: "Used", wide: true, cell: (queue) => <Time at={queue.used_at} /> },
  { id: "group", header: "Group", optional: true, cell: (queue) => queue.group },
];

export function QueuesPage() {
  const queues = useLive<Schemas["QueueList"]>({
    key: ["queues"],
    fetch: (signal) => get("/api/v1/queues", { query: { limit: 500 }, signal }),
    everyMs: 3000,
  });
  const pools = useLive<Schemas["PoolList"]>({
    key: ["pools"],
    fetch: (signal) => get("/api/v1/pools", { query: { limit: 500 }, signal }),
    everyMs: 10_000,
  });
  return (
    <Page title="Queues">
      <Panel title="What waits, by what it needs" flush>
        <Loaded query={queues} what="The list of queues">
          {(data) => (
            <DataTable
              name="queues"
              caption="Queues"
              columns={QUEUE_COLUMNS}
              rows={[...data.queues].sort((a, b) => b.num_ready - a.num_ready)}
              rowKey={queueKey}
              empty={
                <Empty title="There are no queues yet" command="myrmidon run -- echo hello">
                  A queue begins with the first task that needs its dimensions.
                </Empty>
              }
            />
          )}
        </Loaded>
      </Panel>
      <Panel title="Pools" flush>
        <Loaded query={pools} what="The list of pools">
          {(data) => (
            <DataTable
              name="pools"
              caption="Pools"
              columns={POOL_COLUMNS}
              rows={data.pools}
              rowKey={poolKey}
              empty={<Empty title="There are no pools yet" />}
            />
          )}
        </Loaded>
      </Panel>
    </Page>
  );
}

const queueKey = (queue: Queue) => queue.id;
const poolKey = (pool: Pool) => pool.name;

const POOL_COLUMNS: Column<Pool>[] = [
  {
    id: "name",
    header: "Pool",
    className: "w-full",
    cell: (pool) => (
      <Link to="/bots" search={{ dimension: [`pool:${pool.name}`] }} className="font-medium">
        {pool.name}
      </Link>
    ),
  },
  { id: "bots", header: "Bots", right: true, cell: (pool) => plural(pool.num_bots, "bot") },
  { id: "order", header: "Order", cell: (pool) => (pool.task_order === "lifo" ? "newest first" : "oldest first") },
  {
    id: "ageing",
    header: "Ageing",
    wide: true,
    cell: (pool) => (pool.ageing ? `a step of priority each ${showDuration(pool.ageing / 1e6)}` : "none"),
  },
  { id: "set", header: "", cell: (pool) => <SetOrder pool={pool} /> },
];

function SetOrder({ pool }: { pool: Pool }) {
  const client = useQueryClient();
  const { data: session } = useSession();
  const [order, setOrder] = useState(pool.task_order);
  const [ageing, setAgeing] = useState(pool.ageing / 1e6);
  if (!isAdmin(session)) return null;
  const body = { task_order: order, ageing: Math.round(ageing * 1e6) };
  const path = `/api/v1/pools/${encodeURIComponent(pool.name)}`;
  return (
    <Action
      label="Change order"
      explanation={`The order in which ${pool.name} runs its tasks. Those that wait already are ranked again.`}
      command={asCurl("PUT", window.location.origin + path, body)}
      run={() =>
        put("/api/v1/pools/{name}", { path: { name: pool.name }, body }).then(() =>
          client.invalidateQueries({ queryKey: ["pools"] }),
        )
      }
    >
      <div className="flex flex-wrap gap-3">
        <select aria-label="Order" value={order} onChange={(event) => setOrder(event.target.value)}>
          <option value="fifo">oldest first</option>
          <option value="lifo">newest first</option>
        </select>
        <label>
          one step of priority each{" "}
          <input
            type="number"
            min={0}
            value={ageing}
            onChange={(event) => setAgeing(Number(event.target.value))}
            className="w-24"
          />{" "}
          s (0: never)
        </label>
      </div>
    </Action>
  );
}
