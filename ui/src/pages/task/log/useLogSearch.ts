import { useEffect, useState } from "react";
import type { Match, SearchReport, SearchRequest } from "../../../workers/log-search-worker";
import type { LogSource } from "./source";

export interface LogSearch {
  matches: Match[];
  running: boolean;
  /** There are more matches than are kept. */
  full: boolean;
  error: string;
  /** How far the search is, 0 to 1. */
  progress: number;
}

const NOTHING: LogSearch = { matches: [], running: false, full: false, error: "", progress: 0 };

/** Searches in a worker: a slow expression stops neither the page nor the server. A new search ends the old one. */
export function useLogSearch(source: LogSource, pattern: string, matchCase: boolean): LogSearch {
  const [state, setState] = useState<LogSearch>(NOTHING);
  useEffect(() => {
    if (!pattern) {
      setState(NOTHING);
      return;
    }
    const wrong = problemOf(pattern);
    if (wrong) {
      setState({ ...NOTHING, error: wrong });
      return;
    }
    setState({ ...NOTHING, running: true });
    const worker = new Worker(new URL("../../../workers/log-search-worker.ts", import.meta.url), { type: "module" });
    worker.onmessage = (event: MessageEvent<SearchReport>) => {
      const report = event.data;
      if (report.kind === "progress") {
        const found = report.matches.map((match) => ({
          ...match,
          offset: source.offsetOf(match.stream, match.offset),
        }));
        setState((before) => ({
          ...before,
          matches: [...before.matches, ...found].sort((a, b) => a.offset - b.offset),
          progress: report.length ? report.searched / report.length : 1,
        }));
      } else if (report.kind === "done") {
        setState((before) => ({ ...before, running: false, full: report.full, progress: 1 }));
      } else {
        setState((before) => ({ ...before, running: false, error: report.message }));
      }
    };
    const request: SearchRequest = { streams: source.addresses, pattern, flags: matchCase ? "" : "i" };
    worker.postMessage(request);
    return () => worker.terminate();
  }, [source, pattern, matchCase]);
  return state;
}

function problemOf(pattern: string): string {
  try {
    new RegExp(pattern);
    return "";
  } catch (error) {
    return error instanceof Error ? error.message : "This is not a regular expression.";
  }
}
