import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { ApiError, callJson, get, type Schemas } from "../../api/client";
import { useConnection, useLive } from "../../api/live";
import { Button } from "../../components/Button";
import { Chart } from "../../components/Chart";
import { Empty, Loaded } from "../../components/Feedback";
import { Page } from "../../components/Page";
import { Facts, Panel } from "../../components/Panel";
import { StateBadge, StateIcon } from "../../components/StateBadge";
import { Elapsed, Time, useNow } from "../../components/Time";
import { showBytes, showPercent } from "../../lib/format";
import { lookOf, nameOf, type Tone } from "../../lib/states";
import { showDuration, showExact } from "../../lib/time";
import { type BotEvent, type BotRun, type Entry, eventWords, mergeTimeline, stripOf } from "../../lib/timeline";
import { BotActions } from "./BotActions";
import { RunningTasks } from "./RunningTasks";

export type Bot = Schemas["BotInfo"];

export function BotPage() {
  const { id } = useParams({ strict: false }) as { id: string };
  const bot = useLive<Bot>({
    key: ["bot", id],
    fetch: (signal) => get("/api/v1/bots/{id}", { path: { id }, signal }),
    topics: [`bot:${id}`],
    everyMs: 10_000,
  });
  return (
    <Loaded query={bot} what={`The bot ${id}`}>
      {(data) => <BotView bot={data} />}
    </Loaded>
  );
}

function BotView({ bot }: { bot: Bot }) {
  return (
    <Page
      title={bot.bot_id}
      heading={
        <span className="inline-flex flex-wrap items-center gap-2">
          <StateBadge state={bot.status} large />
          <span className="[overflow-wrap:anywhere]">{bot.bot_id}</span>
        </span>
      }
      crumbs={<Link to="/bots">Bots</Link>}
      actions={<BotActions bot={bot} />}
    >
      <StatusLine bot={bot} />
      <div className="grid gap-3 lg:grid-cols-[minmax(0,1fr)_380px]">
        <div className="min-w-0 space-y-3">
          <BotCharts id={bot.bot_id} />
          <Timeline id={bot.bot_id} />
        </div>
        <div className="min-w-0 space-y-3">
          <BotFacts bot={bot} />
          <Dimensions bot={bot} />
          <Caches bot={bot} />
        </div>
      </div>
    </Page>
  );
}

function StatusLine({ bot }: { bot: Bot }) {
  return (
    <p className="text-dim">
      It {lookOf(bot.status).words}.
      {bot.quarantined && <span className="text-warn"> Quarantined: {bot.quarantined}.</span>}
      {bot.maintenance && <span className="text-wait"> Maintenance: {bot.maintenance}.</span>} Last seen{" "}
      <Time at={bot.last_seen_at} />.
      {bot.runs.length > 0 && (
        <>
          {" "}
          It runs <RunningTasks tasks={bot.tasks} />.
        </>
      )}
    </p>
  );
}

interface State {
  disks?: Record<string, { free: number; size: number }>;
  disk_free?: number;
  disk_total?: number;
  ram?: number;
  ram_free?: number;
  load?: number;
  uptime?: number;
  cost_usd_hour?: number;
  hostname?: string;
  ip?: string;
  named_caches?: Record<string, unknown>;
  environments?: Record<string, unknown>;
}

function BotFacts({ bot }: { bot: Bot }) {
  const state = (bot.state ?? {}) as State;
  return (
    <Panel title="Facts">
      <Facts
        rows={[
          ["Host", state.hostname],
          ["Address", bot.address],
          ["First seen", <Time key="f" at={bot.first_seen_at} />],
          ["Session began", <Time key="s" at={bot.session} />],
          [
            "Version",
            bot.version && (
              <code key="v" className="text-xs [overflow-wrap:anywhere]">
                {bot.version}
              </code>
            ),
          ],
          ["Group", bot.group],
          ["Owners", bot.owners.join(", ")],
          ["Load", state.load],
          [
            "Memory free",
            state.ram && state.ram_free !== undefined && `${showBytes(state.ram_free)} of ${showBytes(state.ram)}`,
          ],
          [
            "Disk free",
            state.disk_total &&
              state.disk_free !== undefined &&
              `${showBytes(state.disk_free)} of ${showBytes(state.disk_total)}`,
          ],
          ["Up for", state.uptime !== undefined && showDuration(state.uptime)],
          ["Cost", state.cost_usd_hour && `$${state.cost_usd_hour} an hour`],
          ["Quick failures", bot.num_quick_failures > 0 && bot.num_quick_failures],
        ]}
      />
      <details className="mt-2">
        <summary className="text-dim">Everything it reports</summary>
        <pre className="mt-1 max-h-96 overflow-auto whitespace-pre-wrap rounded bg-panel p-2 text-xs [overflow-wrap:anywhere]">
          {JSON.stringify(bot.state, null, 2)}
        </pre>
      </details>
    </Panel>
  );
}

function Dimensions({ bot }: { bot: Bot }) {
  return (
    <Panel title="Dimensions">
      <ul className="flex flex-wrap gap-1">
        {Object.entries(bot.dimensions).flatMap(([key, values]) =>
          values.map((value) => (
            <li key={`${key}:${value}`} className="min-w-0">
              <Link
                to="/bots"
                search={{ dimension: [`${key}:${value}`] }}
                title={`Bots with ${key}:${value}`}
                className="block truncate rounded bg-off-soft px-1 font-mono text-xs leading-5 text-dim"
              >
                {key}:{value}
              </Link>
            </li>
          )),
        )}
      </ul>
    </Panel>
  );
}

function Caches({ bot }: { bot: Bot }) {
  const state = (bot.state ?? {}) as State;
  return (
    <>
      <Sizes title="Named caches" found={state.named_caches} />
      <Sizes title="Environments of functions" found={state.environments} />
    </>
  );
}

function Sizes({ title, found }: { title: string; found: Record<string, unknown> | undefined }) {
  const entries = Object.entries(found ?? {});
  if (entries.length === 0) return null;
  return (
    <Panel title={title}>
      <Facts rows={entries.map(([name, value]) => [name, sizeOf(value)])} />
    </Panel>
  );
}

function sizeOf(value: unknown): string {
  if (typeof value === "number") return showBytes(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

interface BotSeries {
  start: number;
  step: number;
  busy: (number | null)[];
  succeeded: (number | null)[];
  failed: (number | null)[];
}

const WINDOWS = ["1h", "24h", "7d"] as const;

function BotCharts({ id }: { id: string }) {
  const [window, setWindow] = useState<(typeof WINDOWS)[number]>("24h");
  const series = useQuery<BotSeries | null, ApiError>({
    queryKey: ["bot-series", id, window],
    queryFn: async ({ signal }) => {
      try {
        return await callJson<BotSeries>("get", "/api/v1/bots/{id}/series", {
          path: { id },
          query: { window },
          signal,
        });
      } catch (error) {
        if (error instanceof ApiError && error.status === 404) return null;
        throw error;
      }
    },
    refetchInterval: 30_000,
    placeholderData: (before) => before,
  });
  if (!series.data) return series.error ? <p className="text-dim">{series.error.message}</p> : null;
  const { start, step, busy, succeeded, failed } = series.data;
  return (
    <Panel title="Use" aside={<WindowPicker value={window} onChange={setWindow} />}>
      <div className="grid gap-3 md:grid-cols-2">
        <Chart
          title="Share of the time that the bot was busy"
          start={start}
          step={step}
          height={110}
          max={1}
          show={showPercent}
          series={[{ label: "busy", color: "run", values: busy, fill: true }]}
        />
        <Chart
          title="Runs that ended"
          start={start}
          step={step}
          height={110}
          series={[
            { label: "succeeded", color: "good", values: succeeded },
            { label: "failed", color: "bad", values: failed },
          ]}
        />
      </div>
    </Panel>
  );
}

export function WindowPicker<T extends string>({ value, onChange }: { value: T; onChange: (value: T) => void }) {
  return (
    <fieldset className="flex gap-1">
      <legend className="sr-only">Time</legend>
      {WINDOWS.map((one) => (
        <button
          key={one}
          type="button"
          aria-pressed={one === value}
          onClick={() => onChange(one as T)}
          className={`rounded px-1.5 ${one === value ? "bg-accent-soft" : "text-dim"}`}
        >
          {one.replace(/(\d+)/, "$1 ")}
        </button>
      ))}
    </fieldset>
  );
}

/** What happened to the bot: its events and its runs in one list. */
function Timeline({ id }: { id: string }) {
  const connection = useConnection();
  const every = connection === "live" ? 10_000 : 4000;
  const events = useInfiniteQuery<
    Schemas["BotEventList"],
    ApiError,
    { pages: Schemas["BotEventList"][] },
    unknown[],
    string
  >({
    queryKey: ["bot-events", id],
    queryFn: ({ pageParam, signal }) =>
      get("/api/v1/bots/{id}/events", { path: { id }, query: { limit: 100, cursor: pageParam }, signal }),
    initialPageParam: "",
    getNextPageParam: (page) => page.cursor,
    refetchInterval: every,
  });
  const runs = useInfiniteQuery<Schemas["BotRunList"], ApiError, { pages: Schemas["BotRunList"][] }, unknown[], string>(
    {
      queryKey: ["bot-runs", id],
      queryFn: ({ pageParam, signal }) =>
        get("/api/v1/bots/{id}/tasks", { path: { id }, query: { limit: 100, cursor: pageParam }, signal }),
      initialPageParam: "",
      getNextPageParam: (page) => page.cursor,
      refetchInterval: every,
    },
  );
  const entries = useMemo(
    () =>
      mergeTimeline(
        (events.data?.pages.flatMap((page) => page.events) ?? []) as BotEvent[],
        (runs.data?.pages.flatMap((page) => page.runs) ?? []) as BotRun[],
      ),
    [events.data, runs.data],
  );
  const error = events.error ?? runs.error;
  return (
    <Panel title="Timeline" flush>
      {error && <p className="p-3 text-bad">{error.message}</p>}
      {entries.length === 0 &&
        !error &&
        (events.isPending ? <p className="p-3 text-dim">Loading …</p> : <Empty title="Nothing has happened yet" />)}
      <RunStrip entries={entries} />
      <ol>
        {entries.map((entry) => (
          <TimelineEntry key={entry.kind === "run" ? entry.run.run : `${entry.at} ${entry.event.kind}`} entry={entry} />
        ))}
      </ol>
      {(events.hasNextPage || runs.hasNextPage) && (
        <div className="p-2 text-center">
          <Button
            onClick={() => {
              if (events.hasNextPage) void events.fetchNextPage();
              if (runs.hasNextPage) void runs.fetchNextPage();
            }}
          >
            Earlier
          </Button>
        </div>
      )}
    </Panel>
  );
}

const BAR_COLOR: Record<Tone, string> = {
  good: "bg-good",
  bad: "bg-bad",
  warn: "bg-warn",
  run: "bg-run",
  wait: "bg-wait",
  off: "bg-off",
};

/** The runs of the last day as bars over time. The list below says the same in words. */
function RunStrip({ entries }: { entries: Entry[] }) {
  const now = useNow(10_000);
  const runs = stripOf(entries, now);
  const from = runs[0]?.from;
  if (from === undefined) return null;
  const percent = (at: number) => (100 * (at - from)) / (now - from);
  return (
    <div className="border-b border-line px-3 py-2" aria-hidden="true">
      <div className="relative h-6 bg-panel">
        {runs.map(({ run, from: begin, to }) => (
          <div
            key={run.run}
            title={`${run.name}: ${nameOf(run.state)}, ${showDuration((to - begin) / 1e6)}`}
            className={`absolute inset-y-0 min-w-0.5 ${BAR_COLOR[lookOf(run.state).tone]}`}
            style={{ left: `${percent(begin)}%`, width: `${percent(to) - percent(begin)}%` }}
          />
        ))}
      </div>
      <div className="flex justify-between text-xs text-dim">
        <Time at={from} />
        <span>now</span>
      </div>
    </div>
  );
}

function TimelineEntry({ entry }: { entry: Entry }) {
  return (
    <li className="flex items-start gap-3 border-b border-line px-3 py-1 last:border-0">
      <span className="w-24 shrink-0 text-dim" title={showExact(entry.at)}>
        <Time at={entry.at} />
      </span>
      {entry.kind === "run" ? (
        <>
          <StateIcon state={entry.run.state} className="mt-0.5" />
          <span className="min-w-0 flex-1">
            <Link
              to="/tasks/$id"
              params={{ id: entry.run.task_id }}
              className="mr-3 font-medium [overflow-wrap:anywhere]"
            >
              {entry.run.name || entry.run.run}
            </Link>
            {entry.run.exit_code ? <span className="text-dim">exit code {entry.run.exit_code}</span> : null}
          </span>
          <Elapsed from={entry.run.started_at ?? entry.run.claimed_at} to={entry.run.ended_at} />
        </>
      ) : (
        <span
          className={`min-w-0 flex-1 [overflow-wrap:anywhere] ${/error|missing|dead/.test(entry.event.kind) ? "text-bad" : "text-dim"}`}
        >
          {eventWords(entry.event.kind)}
          {entry.event.message && `: ${entry.event.message}`}
          {entry.repeats > 1 && ` (${entry.repeats} times)`}
        </span>
      )}
    </li>
  );
}
