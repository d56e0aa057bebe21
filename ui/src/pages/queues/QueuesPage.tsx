import { useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { callJson, get, put, type Schemas } from "../../api/client";
import { useLive } from "../../api/live";
import { isAdmin, useSession } from "../../api/session";
import { Action } from "../../components/Action";
import { type Column, DataTable } from "../../components/DataTable";
import { Empty, Loaded } from "../../components/Feedback";
import { Page } from "../../components/Page";
import { Panel } from "../../components/Panel";
import { Time } from "../../components/Time";
import { asCurl } from "../../lib/command";
import { showNumber } from "../../lib/format";
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
  { id: "oldest", header: "Oldest", right: true, wide: true, cell: (queue) => <Time at={queue.oldest_at} /> },
  {
    id: "bots",
    header: "Bots",
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
      <Load />
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

interface PoolLoad {
  pool: string;
  num_ready: number;
  oldest_at: number | null;
  num_bots: number;
  num_busy: number;
  wanted_bots: number;
  wait_p50_s: number | null;
  wait_p95_s: number | null;
}

const waited = (value: number | null) => (value === null ? "–" : showDuration(value));
const LOAD_COLUMNS: Column<PoolLoad>[] = [
  { id: "pool", header: "Pool", className: "w-full", cell: (load) => <span className="font-medium">{load.pool}</span> },
  { id: "ready", header: "Waiting", right: true, cell: (load) => showNumber(load.num_ready) },
  { id: "oldest", header: "Oldest", right: true, wide: true, cell: (load) => <Time at={load.oldest_at} /> },
  { id: "p50", header: "Wait, median", right: true, wide: true, cell: (load) => waited(load.wait_p50_s) },
  { id: "p95", header: "Wait, 95 %", right: true, cell: (load) => waited(load.wait_p95_s) },
  { id: "busy", header: "Busy bots", right: true, wide: true, cell: (load) => `${load.num_busy} of ${load.num_bots}` },
  {
    id: "wanted",
    header: "Wanted bots",
    right: true,
    cell: (load) => (
      <span className={load.wanted_bots > load.num_bots ? "font-semibold text-warn" : ""}>{load.wanted_bots}</span>
    ),
  },
];
const loadKey = (load: PoolLoad) => load.pool;

/** How long tasks of each pool wait, and how many bots would be needed. */
function Load() {
  const load = useLive<{ pools: PoolLoad[] }>({
    key: ["pool-load"],
    fetch: (signal) => callJson("get", "/api/v1/pools/load", { signal }),
    everyMs: 5000,
  });
  return (
    <Panel title="Waiting times and wanted bots" flush>
      <Loaded query={load} what="The load of the pools">
        {(data) => (
          <DataTable
            name="pool-load"
            caption="Load of the pools"
            columns={LOAD_COLUMNS}
            rows={data.pools}
            rowKey={loadKey}
            empty={<Empty title="Nothing has waited yet" />}
          />
        )}
      </Loaded>
    </Panel>
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
  { id: "bots", header: "Bots", right: true, cell: (pool) => showNumber(pool.num_bots) },
  {
    id: "order",
    header: "Order",
    cell: (pool) => (
      <span className="whitespace-nowrap">{pool.task_order === "lifo" ? "newest first" : "oldest first"}</span>
    ),
  },
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
