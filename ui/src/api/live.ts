/** The page's side of the live stream: register topics, hear of changes, know whether the stream is connected. */
import {
  keepPreviousData,
  type QueryClient,
  type QueryKey,
  type UseQueryResult,
  useQuery,
  useQueryClient,
} from "@tanstack/react-query";
import { useEffect, useSyncExternalStore } from "react";
import { LiveHub } from "../workers/live-hub";
import type { FromTab, LiveChange, LogLengths, ToTab } from "../workers/live-protocol";
import { ApiError } from "./client";

type Listener = (topics: ReadonlySet<string> | "all", logs: LogLengths[], changes: LiveChange[]) => void;

const listeners = new Set<Listener>();
const statusListeners = new Set<() => void>();
const topicCounts = new Map<string, number>();
let connected = false;
let unreachable = false;
let send: ((message: FromTab) => void) | null = null;

/** Connect to the shared worker; a browser without shared workers gets a stream of its own for this tab. */
export function startLive(): void {
  if (send) return;
  if (typeof SharedWorker === "undefined") {
    send = new LiveHub().connect(receive);
  } else {
    const worker = new SharedWorker(new URL("../workers/live-worker.ts", import.meta.url), {
      type: "module",
      name: "myrmidon-live",
    });
    worker.port.onmessage = (message: MessageEvent<ToTab>) => receive(message.data);
    send = (message) => worker.port.postMessage(message);
  }
  window.addEventListener("pagehide", () => send?.({ closed: true }));
  window.addEventListener("pageshow", () => sendTopics());
  sendTopics();
}

function receive(message: ToTab): void {
  if (message.kind === "status") {
    connected = message.connected;
    for (const listener of statusListeners) listener();
  } else if (message.kind === "reset") {
    for (const listener of [...listeners]) listener("all", [], []);
  } else {
    const topics = new Set(message.topics);
    for (const listener of [...listeners]) listener(topics, message.logs, message.changes);
  }
}

function sendTopics(): void {
  send?.({ topics: [...topicCounts.keys()] });
}

function count(topic: string, change: 1 | -1): void {
  const n = (topicCounts.get(topic) ?? 0) + change;
  if (n > 0) topicCounts.set(topic, n);
  else topicCounts.delete(topic);
}

/** Hear of changes of topics until the returned function is called. */
export function subscribe(topics: readonly string[], listener: Listener): () => void {
  const wanted = new Set(topics);
  const filtered: Listener = (changed, logs, changes) => {
    if (changed === "all" || [...changed].some((topic) => wanted.has(topic))) listener(changed, logs, changes);
  };
  listeners.add(filtered);
  for (const topic of topics) count(topic, 1);
  sendTopics();
  return () => {
    listeners.delete(filtered);
    for (const topic of topics) count(topic, -1);
    sendTopics();
  };
}

export function setUnreachable(value: boolean): void {
  if (unreachable === value) return;
  unreachable = value;
  for (const listener of statusListeners) listener();
}

export type Connection = "live" | "polling" | "lost";

function connection(): Connection {
  if (unreachable) return "lost";
  return connected ? "live" : "polling";
}

export function useConnection(): Connection {
  return useSyncExternalStore(
    (listener) => {
      statusListeners.add(listener);
      return () => statusListeners.delete(listener);
    },
    connection,
    connection,
  );
}

const POLL_MS = 2000;
/** Between two refetches of a query that a busy topic asks for. */
const AT_MOST_EVERY_MS = 800;

interface LiveQuery<T> {
  key: QueryKey;
  fetch: (signal: AbortSignal) => Promise<T>;
  /** Changes of these topics fetch again. */
  topics?: readonly string[];
  /** Between two fetches that topics ask for. */
  atMostEveryMs?: number;
  /** Fetch again after this time in any case: for what no topic tells of. */
  everyMs?: number | ((data: T | undefined) => number | undefined);
  /** What is shown does not change any more. */
  settled?: (data: T) => boolean;
  enabled?: boolean;
  keepPrevious?: boolean;
}

const waiting = new Set<string>();
const AGAIN_MS = 200;

/** Fetch a list again, after a fetch that is under way: that may be for older entries, which somebody has asked for. */
export function refreshList(client: QueryClient, queryKey: QueryKey): void {
  const text = JSON.stringify(queryKey);
  if (waiting.has(text)) return;
  if (client.isFetching({ queryKey, exact: true }) === 0) {
    void client.invalidateQueries({ queryKey, exact: true });
    return;
  }
  waiting.add(text);
  setTimeout(() => {
    waiting.delete(text);
    refreshList(client, queryKey);
  }, AGAIN_MS);
}

/** A query that stays up to date: by the live stream, or by polling while there is none. */
export function useLive<T>(query: LiveQuery<T>): UseQueryResult<T, ApiError> {
  const client = useQueryClient();
  const state = useConnection();
  const { topics = [], enabled = true, atMostEveryMs = AT_MOST_EVERY_MS } = query;
  const topicText = topics.join("\n");
  const keyText = JSON.stringify(query.key);

  useEffect(() => {
    if (!enabled || topicText === "") return;
    let last = 0;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const refresh = () => {
      timer = undefined;
      last = Date.now();
      void client.invalidateQueries({ queryKey: JSON.parse(keyText) as QueryKey, exact: true });
    };
    const stop = subscribe(topicText.split("\n"), () => {
      timer ??= setTimeout(refresh, Math.max(0, last + atMostEveryMs - Date.now()));
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [client, enabled, topicText, keyText, atMostEveryMs]);

  return useQuery<T, ApiError>({
    queryKey: query.key,
    queryFn: ({ signal }) => query.fetch(signal),
    enabled,
    ...(query.keepPrevious ? { placeholderData: keepPreviousData } : {}),
    refetchInterval: (current) => {
      const data = current.state.data;
      if (current.state.error) return POLL_MS;
      if (data !== undefined && query.settled?.(data as T)) return false;
      if (topics.length > 0 && state !== "live") return POLL_MS;
      const every = typeof query.everyMs === "function" ? query.everyMs(data as T | undefined) : query.everyMs;
      return every ?? false;
    },
  });
}

/** Whether a failed query is worth an automatic retry: only if the server could not be reached. */
export function isTransient(error: unknown): boolean {
  return error instanceof ApiError && (error.status === 0 || error.status >= 500);
}
