/** Events and runs of a bot as one list, newest first. */

export interface BotEvent {
  at: number;
  kind: string;
  message: string;
  run?: string | null | undefined;
  version?: string | null | undefined;
}

export interface BotRun {
  task_id: string;
  run: string;
  name: string;
  state: string;
  reason: string;
  claimed_at: number;
  started_at: number | null;
  ended_at: number | null;
  exit_code: number | null;
  duration: number | null;
}

export type Entry =
  | { at: number; kind: "run"; run: BotRun }
  | { at: number; kind: "event"; event: BotEvent; repeats: number };

/** Events that only repeat what a run says. */
const OF_RUNS = new Set(["request_task", "task_completed", "task_update", "task_error", "task_killed"]);
/** Events that say nothing by being repeated: consecutive ones become one. */
const QUIET = new Set(["request_sleep", "bot_log"]);

export function mergeTimeline(events: readonly BotEvent[], runs: readonly BotRun[]): Entry[] {
  const known = new Set(runs.map((run) => run.run));
  const entries: Entry[] = runs.map((run) => ({ at: run.claimed_at, kind: "run", run }));
  for (const event of events) {
    if (event.run && known.has(event.run) && OF_RUNS.has(event.kind)) continue;
    entries.push({ at: event.at, kind: "event", event, repeats: 1 });
  }
  entries.sort((a, b) => b.at - a.at);
  const merged: Entry[] = [];
  for (const entry of entries) {
    const last = merged.at(-1);
    if (
      entry.kind === "event" &&
      last?.kind === "event" &&
      QUIET.has(entry.event.kind) &&
      last.event.kind === entry.event.kind &&
      last.event.message === entry.event.message
    ) {
      last.repeats++;
    } else merged.push(entry);
  }
  return merged;
}

const DAY = 86_400e6;

/** The runs of a timeline that were under way in the last day, oldest first, each with its begin and end. */
export function stripOf(entries: readonly Entry[], now: number): { run: BotRun; from: number; to: number }[] {
  return entries
    .flatMap((entry) => (entry.kind === "run" ? [entry.run] : []))
    .map((run) => ({ run, from: run.started_at ?? run.claimed_at, to: run.ended_at ?? now }))
    .filter((one) => one.from > now - DAY)
    .sort((a, b) => a.from - b.from);
}

const WORDS: Record<string, string> = {
  bot_connected: "connected",
  bot_disconnected: "disconnected",
  bot_missing: "stopped reporting",
  bot_dead: "was declared dead",
  bot_error: "reported an error",
  bot_log: "wrote",
  bot_rebooting: "reboots",
  bot_shutdown: "shut down",
  bot_terminate: "was told to end",
  request_task: "got a task",
  request_sleep: "had nothing to do",
  request_update: "was told to update",
  request_restart: "was told to restart",
  task_completed: "completed a task",
};

export function eventWords(kind: string): string {
  return WORDS[kind] ?? kind.replaceAll("_", " ");
}
