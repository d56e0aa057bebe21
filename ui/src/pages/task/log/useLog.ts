/** The state of a log that is shown: which part is loaded, what is being fetched, whether it grows. */
import { useCallback, useEffect, useReducer, useRef } from "react";
import { ApiError } from "../../../api/client";
import { subscribe, useConnection } from "../../../api/live";
import { alignToLine, LogWindow } from "../../../lib/log";
import type { LogLengths } from "../../../workers/live-protocol";
import { LogSource, type StreamName } from "./source";

const CHUNK = 256 << 10;
const MAX_LINES = 60_000;
const POLL_MS = 800;
const CHECK_MS = 5000;

export interface Log {
  window: LogWindow;
  source: LogSource;
  loading: boolean;
  error: ApiError | null;
  /** Goes up with every change. */
  version: number;
  /** Lines that the last change added (or removed) before those that were there. */
  shift: number;
  openAt: (offset: number) => Promise<void>;
  openEnd: () => Promise<void>;
  loadBefore: () => Promise<void>;
  loadAfter: () => Promise<void>;
}

interface Wanted {
  task: string;
  run: number;
  /** The id of the run, which names its topic. */
  runId: string;
  stream: StreamName;
  /** The run has not ended, so the log may grow. */
  growing: boolean;
  /** Where to begin; null for the end. */
  at: number | null;
}

export function useLog({ task, run, runId, stream, growing, at }: Wanted): Log {
  const [version, bump] = useReducer((n: number) => n + 1, 0);
  const connection = useConnection();
  const state = useRef({
    window: new LogWindow(),
    source: new LogSource(task, run, stream),
    loading: true,
    error: null as ApiError | null,
    shift: 0,
    queue: Promise.resolve(),
    alive: new AbortController(),
  });

  /** One fetch at a time: two that overlap would add the same lines twice. */
  const enqueue = useCallback((work: (signal: AbortSignal) => Promise<void>): Promise<void> => {
    const s = state.current;
    const { alive } = s;
    const run = async () => {
      if (alive.signal.aborted) return;
      s.loading = true;
      try {
        await work(alive.signal);
        if (alive === s.alive) s.error = null;
      } catch (error) {
        if (alive === s.alive && error instanceof ApiError) s.error = error;
      } finally {
        if (alive === s.alive) {
          s.loading = false;
          bump();
        }
      }
    };
    s.queue = s.queue.then(run, run);
    return s.queue;
  }, []);

  const openAt = useCallback(
    (offset: number) =>
      enqueue(async (signal) => {
        const { window, source } = state.current;
        await source.refresh(signal);
        const begin = Math.max(0, Math.min(offset, source.length) - CHUNK / 4);
        const pieces = await source.read(begin, CHUNK, signal);
        const [first, ...rest] = pieces;
        const aligned = first && offset > first.offset ? alignToLine(first) : first;
        window.reset(aligned?.offset ?? begin);
        for (const piece of aligned ? [aligned, ...rest] : []) window.append(piece);
        state.current.shift = 0;
      }),
    [enqueue],
  );

  const openEnd = useCallback(
    () =>
      enqueue(async (signal) => {
        const { window, source } = state.current;
        await source.refresh(signal);
        const begin = Math.max(0, source.length - CHUNK);
        const [first, ...rest] = await source.read(begin, CHUNK, signal);
        const aligned = first ? alignToLine(first) : undefined;
        window.reset(aligned?.offset ?? begin);
        for (const piece of aligned ? [aligned, ...rest] : []) window.append(piece);
        state.current.shift = 0;
      }),
    [enqueue],
  );

  const loadBefore = useCallback(
    () =>
      enqueue(async (signal) => {
        const { window, source } = state.current;
        if (window.start === 0) return;
        const begin = Math.max(0, window.start - CHUNK);
        const [first, ...rest] = await source.read(begin, window.start - begin, signal);
        if (!first) return;
        state.current.shift = window.prepend([alignToLine(first), ...rest]);
        window.trimEnd(MAX_LINES);
      }),
    [enqueue],
  );

  const loadAfter = useCallback(
    () =>
      enqueue(async (signal) => {
        const { window, source } = state.current;
        const pieces = await source.read(window.end, CHUNK, signal);
        for (const piece of pieces) window.append(piece);
        state.current.shift = -window.trimStart(MAX_LINES);
      }),
    [enqueue],
  );

  // `at` is only where to begin: a later permalink does not load the log again.
  // biome-ignore lint/correctness/useExhaustiveDependencies: see above
  useEffect(() => {
    const s = state.current;
    s.alive = new AbortController();
    s.window = new LogWindow();
    s.source = new LogSource(task, run, stream);
    s.queue = Promise.resolve();
    s.loading = true;
    s.error = null;
    bump();
    void (at === null ? openEnd() : openAt(at));
    const { alive } = s;
    return () => alive.abort();
  }, [task, run, stream, openAt, openEnd]);

  /** Fetch what was written since; only if the window reaches the end, else only how long the log is now. */
  const pull = useCallback(
    (known?: LogLengths) =>
      enqueue(async (signal) => {
        const s = state.current;
        const atEnd = s.window.end >= s.source.length;
        await s.source.refresh(signal, known);
        if (!atEnd) return;
        while (s.window.end < s.source.length) {
          const pieces = await s.source.read(s.window.end, 4 * CHUNK, signal);
          if (pieces.length === 0) break;
          for (const piece of pieces) s.window.append(piece);
          s.window.trimStart(MAX_LINES);
        }
        s.shift = 0;
      }),
    [enqueue],
  );

  useEffect(() => {
    if (!growing) return;
    let busy = false;
    const tick = async (known?: LogLengths) => {
      if (busy) return;
      busy = true;
      await pull(known);
      busy = false;
    };
    const stop = subscribe([`log:${runId}`], (_topics, logs) => void tick(logs.find((one) => one.run === runId)));
    const timer = setInterval(() => void tick(), connection === "live" ? CHECK_MS : POLL_MS);
    return () => {
      stop();
      clearInterval(timer);
      // The last bytes may have arrived together with the end of the run.
      void pull();
    };
  }, [growing, runId, connection, pull]);

  const { window, source, loading, error, shift } = state.current;
  return { window, source, loading, error, version, shift, openAt, openEnd, loadBefore, loadAfter };
}
