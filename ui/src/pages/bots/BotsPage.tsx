import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useMemo, useState } from "react";
import { type ApiError, get, post, type Schemas } from "../../api/client";
import { refreshList, subscribe } from "../../api/live";
import { isAdmin, useSession } from "../../api/session";
import { Action } from "../../components/Action";
import { Button } from "../../components/Button";
import { type Column, DataTable } from "../../components/DataTable";
import { Empty, Failed, Loading } from "../../components/Feedback";
import { Page } from "../../components/Page";
import { StateBadge, StateIcon } from "../../components/StateBadge";
import { Time } from "../../components/Time";
import { commandLine } from "../../lib/command";
import { plural, shortId } from "../../lib/format";
import { listOf, type Search, textOf } from "../../lib/search";
import { BOT_STATES, nameOf } from "../../lib/states";
import { RunningTasks } from "./RunningTasks";

type Bot = Schemas["BotSummary"];

const COLUMNS: Column<Bot>[] = [
  { id: "state", header: "State", cell: (bot) => <StateBadge state={bot.status} /> },
  {
    id: "id",
    header: "Bot",
    className: "w-full min-w-32 lg:w-1/3",
    cell: (bot) => (
      <>
        <Link to="/bots/$id" params={{ id: bot.bot_id }} className="font-medium [overflow-wrap:anywhere]">
          {bot.bot_id}
        </Link>
        {(bot.quarantined || bot.maintenance) && (
          <div className="text-xs text-warn [overflow-wrap:anywhere]">{bot.quarantined ?? bot.maintenance}</div>
        )}
      </>
    ),
  },
  {
    id: "runs",
    header: "Runs",
    wide: true,
    className: "w-2/3",
    cell: (bot) => (
      <>
        <RunningTasks tasks={bot.tasks?.slice(0, 3)} />
        {bot.runs.length > 3 && <span className="text-dim"> and {bot.runs.length - 3} more</span>}
      </>
    ),
  },
  { id: "pool", header: "Pool", wide: true, cell: (bot) => (bot.dimensions.pool ?? []).join(", ") },
  {
    id: "os",
    header: "System",
    wide: true,
    cell: (bot) => <span className="whitespace-nowrap">{mostExact(bot.dimensions.os)}</span>,
  },
  { id: "seen", header: "Seen", cell: (bot) => <Time at={bot.last_seen_at} /> },
  {
    id: "version",
    header: "Version",
    wide: true,
    cell: (bot) => (
      <code className="text-xs" title={bot.version}>
        {shortId(bot.version)}
      </code>
    ),
  },
  { id: "address", header: "Address", optional: true, cell: (bot) => bot.address },
  { id: "first", header: "First seen", optional: true, cell: (bot) => <Time at={bot.first_seen_at} /> },
  {
    id: "dimensions",
    header: "Dimensions",
    optional: true,
    cell: (bot) => (
      <span className="font-mono text-xs">
        {Object.entries(bot.dimensions)
          .map(([key, values]) => `${key}=${values.join("|")}`)
          .join(" ")}
      </span>
    ),
  },
];

/** "Debian-12" of "Debian", "Debian-12" and "Linux". */
function mostExact(values: string[] | undefined): string {
  return [...(values ?? [])].sort((a, b) => b.length - a.length)[0] ?? "";
}

const rowKey = (bot: Bot) => bot.bot_id;
const rowVersion = (bot: Bot) => `${bot.status} ${bot.version} ${bot.runs.join(" ")}`;

export function BotsPage() {
  const search = useSearch({ strict: false }) as Search;
  const navigate = useNavigate();
  const client = useQueryClient();
  const { data: session } = useSession();
  const [selected, setSelected] = useState<Set<string>>(new Set());
  const filters = { dimension: listOf(search, "dimension"), state: textOf(search, "state") };
  const keyText = JSON.stringify(["bots", filters]);
  const bots = useInfiniteQuery<Schemas["BotList"], ApiError, { pages: Schemas["BotList"][] }, unknown[], string>({
    queryKey: ["bots", filters],
    queryFn: ({ pageParam, signal }) =>
      get("/api/v1/bots", { query: { ...filters, limit: 100, cursor: pageParam }, signal }),
    initialPageParam: "",
    getNextPageParam: (page) => page.cursor,
    placeholderData: (before) => before,
    refetchInterval: 5000,
  });
  useEffect(() => subscribe(["bots"], () => refreshList(client, JSON.parse(keyText) as unknown[])), [client, keyText]);
  const rows = useMemo(() => bots.data?.pages.flatMap((page) => page.bots) ?? [], [bots.data]);
  const chosen = rows.filter((bot) => selected.has(bot.bot_id));
  const set = (change: Search) => void navigate({ to: "/bots", search: { ...search, ...change } });
  return (
    <Page title="Bots" actions={<Versions rows={rows} />}>
      <div className="flex flex-wrap items-center gap-2">
        <DimensionFilter
          chosen={filters.dimension}
          onAdd={(one) => set({ dimension: [...new Set([...filters.dimension, one])] })}
        />
        {BOT_STATES.map((state) => (
          <button
            key={state}
            type="button"
            aria-pressed={filters.state === state}
            onClick={() => set({ state: filters.state === state ? "" : state })}
            className={`inline-flex h-7 items-center gap-1 rounded border px-2 ${filters.state === state ? "border-accent bg-accent-soft" : "border-line hover:bg-panel"}`}
          >
            <StateIcon state={state} />
            {nameOf(state)}
          </button>
        ))}
        {filters.dimension.map((one) => (
          <Button key={one} onClick={() => set({ dimension: filters.dimension.filter((other) => other !== one) })}>
            {one} <span aria-hidden="true">×</span>
          </Button>
        ))}
      </div>
      {isAdmin(session) && chosen.length > 0 && <BulkBots bots={chosen} onDone={() => setSelected(new Set())} />}
      {bots.error && rows.length === 0 ? (
        <Failed error={bots.error} what="This list" retry={() => void bots.refetch()} />
      ) : bots.isPending ? (
        <Loading />
      ) : (
        <DataTable
          name="bots"
          caption="Bots, by id"
          columns={COLUMNS}
          rows={rows}
          rowKey={rowKey}
          version={rowVersion}
          selected={new Set(chosen.map(rowKey))}
          {...(isAdmin(session) ? { onSelect: setSelected } : {})}
          onOpen={(bot) => void navigate({ to: "/bots/$id", params: { id: bot.bot_id } })}
          empty={
            Object.keys(search).length > 0 ? (
              <Empty title="No bot matches these filters">Remove a filter above.</Empty>
            ) : (
              <Empty title="There are no bots yet" command="myrmidon bot invite">
                This prints a command that starts a bot on another machine:
              </Empty>
            )
          }
        />
      )}
      {bots.hasNextPage && (
        <div className="text-center">
          <Button disabled={bots.isFetchingNextPage} onClick={() => void bots.fetchNextPage()}>
            More bots
          </Button>
        </div>
      )}
    </Page>
  );
}

function Versions({ rows }: { rows: Bot[] }) {
  const counts = new Map<string, number>();
  for (const bot of rows) if (bot.alive) counts.set(bot.version, (counts.get(bot.version) ?? 0) + 1);
  if (counts.size < 2) return null;
  return (
    <span className="text-dim">
      versions:{" "}
      {[...counts].map(([version, n]) => (
        <span key={version} className="mr-2" title={version}>
          {version ? shortId(version) : "unknown"} ×{n}
        </span>
      ))}
    </span>
  );
}

function DimensionFilter({ chosen, onAdd }: { chosen: string[]; onAdd: (dimension: string) => void }) {
  const known = useQuery({
    queryKey: ["dimensions"],
    queryFn: ({ signal }) => get("/api/v1/bots/dimensions", { signal }),
    staleTime: 30_000,
  });
  return (
    <form
      className="contents"
      onSubmit={(event) => {
        event.preventDefault();
        const text = String(new FormData(event.currentTarget).get("dimension") ?? "").trim();
        if (text && !chosen.includes(text)) onAdd(text);
        event.currentTarget.reset();
      }}
    >
      <input
        name="dimension"
        data-filter
        list="known-dimensions"
        aria-label="Filter by dimension"
        placeholder="dimension, as key:value"
        autoComplete="off"
        className="w-60"
      />
      <datalist id="known-dimensions">
        {(known.data?.dimensions ?? []).flatMap(({ key, values }) =>
          Object.entries(values)
            .slice(0, 30)
            .map(([value, n]) => (
              <option key={`${key}:${value}`} value={`${key}:${value}`}>
                {plural(n, "bot")}
              </option>
            )),
        )}
      </datalist>
    </form>
  );
}

/** Actions on the selected bots, one call after the other. */
function BulkBots({ bots, onDone }: { bots: Bot[]; onDone: () => void }) {
  const client = useQueryClient();
  const [reason, setReason] = useState("");
  const ids = bots.map(rowKey);
  const each = async (action: (id: string) => Promise<unknown>) => {
    for (const id of ids) await action(id);
    onDone();
    await client.invalidateQueries({ queryKey: ["bots"] });
  };
  const commands = (...words: string[]) =>
    ids.map((id) => commandLine("myrmidon", "bot", words[0] ?? "", id, ...words.slice(1))).join("\n");
  const n = plural(ids.length, "bot");
  return (
    <div className="flex flex-wrap items-center gap-2">
      <span className="text-dim">{n} selected</span>
      <Action
        label="Drain"
        explanation={`${n} will finish their runs and get no new tasks.`}
        command={commands("drain")}
        run={() => each((id) => post("/api/v1/bots/{id}/drain", { path: { id }, body: { draining: true } }))}
      />
      <Action
        label="End draining"
        explanation={`${n} will take tasks again.`}
        command={commands("drain", "--undo")}
        run={() => each((id) => post("/api/v1/bots/{id}/drain", { path: { id }, body: { draining: false } }))}
      />
      <Action
        label="Quarantine"
        explanation={`${n} will get no tasks until the quarantine ends; their runs continue.`}
        command={commands("quarantine", ...(reason ? ["--reason", reason] : []))}
        run={() => each((id) => post("/api/v1/bots/{id}/quarantine", { path: { id }, body: { reason } }))}
      >
        <input
          aria-label="Reason"
          placeholder="reason"
          value={reason}
          onChange={(event) => setReason(event.target.value)}
          className="w-full"
        />
      </Action>
      <Action
        label="Terminate"
        danger
        explanation={`${n} will finish their runs and then exit.`}
        command={commands("terminate")}
        run={() => each((id) => post("/api/v1/bots/{id}/terminate", { path: { id }, body: {} }))}
      />
    </div>
  );
}
