/** Searches a log for a regular expression, piece by piece. The page ends the worker to cancel it. */
import { stripAnsi } from "../lib/ansi";
import { MAX_LINE_BYTES, splitLines } from "../lib/log";

export interface SearchRequest {
  /** Addresses of the streams to search, without offset and limit. */
  streams: { stream: number; url: string }[];
  pattern: string;
  flags: string;
}

export interface Match {
  offset: number;
  stream: number;
  text: string;
}

export type SearchReport =
  | { kind: "progress"; searched: number; length: number; matches: Match[] }
  | { kind: "done"; full: boolean }
  | { kind: "error"; message: string };

const CHUNK = 2 << 20;
export const MAX_MATCHES = 5000;
const decoder = new TextDecoder();
const post = (report: SearchReport) => postMessage(report);

async function search(request: SearchRequest): Promise<void> {
  const regex = new RegExp(request.pattern, request.flags);
  let left = MAX_MATCHES;
  for (const { stream, url } of request.streams) {
    left -= await searchStream(regex, stream, url, left);
    if (left <= 0) break;
  }
  post({ kind: "done", full: left <= 0 });
}

/** Reports the matches in one stream, at most `max`; returns their number. */
async function searchStream(regex: RegExp, stream: number, url: string, max: number): Promise<number> {
  let offset = 0;
  let rest: Uint8Array = new Uint8Array();
  let found = 0;
  for (;;) {
    const response = await fetch(`${url}&offset=${offset}&limit=${CHUNK}`, { credentials: "same-origin" });
    if (!response.ok) throw new Error(`The server answered with status ${response.status}.`);
    const length = Number(response.headers.get("x-log-length"));
    const next = Number(response.headers.get("x-log-next"));
    const content = new Uint8Array(await response.arrayBuffer());
    const isLast = next >= length || next <= offset;
    const bytes = new Uint8Array(rest.length + content.length);
    bytes.set(rest);
    bytes.set(content, rest.length);
    const lines = splitLines(bytes, offset - rest.length, stream, next);
    const last = lines.at(-1);
    rest = new Uint8Array();
    if (last && !last.complete && !isLast && last.bytes.length < MAX_LINE_BYTES) {
      lines.pop();
      rest = last.bytes.slice();
    }
    const matches: Match[] = [];
    for (const line of lines) {
      const raw = decoder.decode(line.bytes);
      const text = raw.includes("\x1b") ? stripAnsi(raw) : raw;
      if (!regex.test(text)) continue;
      matches.push({ offset: line.offset, stream: line.stream, text: text.slice(0, 300) });
      if (++found >= max) break;
    }
    post({ kind: "progress", searched: next, length, matches });
    if (found >= max || isLast) return found;
    offset = next;
  }
}

self.onmessage = (event: MessageEvent<SearchRequest>) => {
  search(event.data).catch((error: unknown) =>
    post({ kind: "error", message: error instanceof Error ? error.message : String(error) }),
  );
};
