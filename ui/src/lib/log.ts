/**
 * A window of a log: the lines of a part of it, addressed by byte offsets. A log can have a million lines, so the page
 * holds only what is near the part that is shown, and fetches more as the reader scrolls.
 */
import { PLAIN, parseAnsi, type Span, type Style } from "./ansi";

/** A longer line is shown in parts of this size: one element with 100 MB of text would stop the browser. */
export const MAX_LINE_BYTES = 4096;
export const STDOUT = 0;
export const STDERR = 1;
const NEWLINE = 10;
const ESCAPE = 27;

/** Bytes of one stream, as they were fetched. */
export interface Piece {
  offset: number;
  /** Where the next piece begins; can be further than the bytes reach if the log has a gap. */
  next: number;
  bytes: Uint8Array;
  stream: number;
}

export interface Line {
  /** Where the line begins: its permanent address. */
  offset: number;
  bytes: Uint8Array;
  stream: number;
  /** Ends with a newline, or is a full part of a longer line. */
  complete: boolean;
  style: Style;
  /** Whether the line goes on in the next one without a newline. */
  continued: boolean;
}

const decoder = new TextDecoder("utf-8");

export function textOfLine(line: Line): string {
  return decoder.decode(line.bytes);
}

export function spansOfLine(line: Line): Span[] {
  return parseAnsi(textOfLine(line), line.style).spans;
}

export class LogWindow {
  lines: Line[] = [];
  /** The offsets that are loaded: from `start` up to `end`. */
  start = 0;
  end = 0;
  /** The number of the first loaded line, if all lines before it have been counted. */
  firstNumber: number | null = 1;
  private lastStyle: Record<number, Style> = {};

  /** Begin again at an offset. */
  reset(offset: number): void {
    this.lines = [];
    this.start = offset;
    this.end = offset;
    this.firstNumber = offset === 0 ? 1 : null;
    this.lastStyle = {};
  }

  append(piece: Piece): void {
    if (piece.offset !== this.end) return;
    let bytes = piece.bytes;
    let offset = piece.offset;
    const last = this.lines.at(-1);
    if (last && !last.complete && last.stream === piece.stream) {
      // The last line was not at its end: it is split again together with what follows.
      this.lines.pop();
      this.lastStyle[last.stream] = last.style;
      bytes = concat(last.bytes, bytes);
      offset = last.offset;
    }
    for (const line of splitLines(bytes, offset, piece.stream, piece.next)) {
      line.style = this.lastStyle[piece.stream] ?? PLAIN;
      if (line.bytes.includes(ESCAPE)) this.lastStyle[piece.stream] = parseAnsi(textOfLine(line), line.style).end;
      this.lines.push(line);
    }
    this.end = piece.next;
  }

  /** Add pieces that end where the window begins; returns the number of lines added. */
  prepend(pieces: Piece[]): number {
    const before = new LogWindow();
    before.reset(pieces[0]?.offset ?? this.start);
    for (const piece of pieces) before.append(piece);
    if (before.end !== this.start) return 0;
    this.lines = [...before.lines, ...this.lines];
    this.start = before.start;
    if (this.start === 0) this.firstNumber = 1;
    else if (this.firstNumber !== null) this.firstNumber -= before.lines.length;
    return before.lines.length;
  }

  /** Forget the first lines if there are too many; returns how many were forgotten. */
  trimStart(maxLines: number): number {
    const surplus = this.lines.length - maxLines;
    if (surplus <= 0) return 0;
    this.lines = this.lines.slice(surplus);
    this.start = this.lines[0]?.offset ?? this.end;
    if (this.firstNumber !== null) this.firstNumber += surplus;
    return surplus;
  }

  trimEnd(maxLines: number): void {
    const first = this.lines[maxLines];
    if (!first) return;
    this.lines = this.lines.slice(0, maxLines);
    this.end = first.offset;
    this.lastStyle = { [first.stream]: first.style };
  }

  /** The index of the line that holds an offset; -1 if it is not loaded. */
  indexOf(offset: number): number {
    if (offset < this.start || offset > this.end || this.lines.length === 0) return -1;
    let low = 0;
    let high = this.lines.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if ((this.lines[middle] as Line).offset <= offset) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}

/** Lines of bytes that begin at an offset. With a gap (`next` beyond the bytes) offsets stay below `next`. */
export function splitLines(bytes: Uint8Array, offset: number, stream: number, next: number): Line[] {
  const lines: Line[] = [];
  let begin = 0;
  const push = (end: number, complete: boolean, continued: boolean) => {
    const address = Math.min(offset + begin, Math.max(offset, next - 1));
    lines.push({ offset: address, bytes: bytes.subarray(begin, end), stream, complete, continued, style: PLAIN });
  };
  while (begin < bytes.length) {
    const newline = bytes.indexOf(NEWLINE, begin);
    const end = newline < 0 ? bytes.length : newline;
    if (end - begin > MAX_LINE_BYTES) {
      const cut = characterBoundary(bytes, begin + MAX_LINE_BYTES);
      push(cut, true, true);
      begin = cut;
      continue;
    }
    const isCrLf = newline > begin && bytes[newline - 1] === 13;
    push(isCrLf ? end - 1 : end, newline >= 0, false);
    begin = end + 1;
  }
  return lines;
}

/** The last place at or before `at` where a UTF-8 character begins. */
function characterBoundary(bytes: Uint8Array, at: number): number {
  for (let back = 0; back < 4; back++) {
    if (((bytes[at - back] ?? 0) & 0xc0) !== 0x80) return at - back;
  }
  return at;
}

/** The first offset after a newline at or after the beginning; the beginning itself if there is none. */
export function alignToLine(piece: Piece): Piece {
  if (piece.offset === 0 || piece.bytes.length !== piece.next - piece.offset) return piece;
  const newline = piece.bytes.indexOf(NEWLINE);
  if (newline < 0 || newline === piece.bytes.length - 1) return piece;
  return { ...piece, offset: piece.offset + newline + 1, bytes: piece.bytes.subarray(newline + 1) };
}

function concat(a: Uint8Array, b: Uint8Array): Uint8Array {
  const both = new Uint8Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}

// ---------------------------------------------------------------- order of two streams

/** From `offset` of `stream` on, bytes were written at the time `at`, in microseconds. */
export type Mark = [at: number, stream: number, offset: number];

export interface Segment {
  stream: number;
  /** Where it begins in its stream. */
  offset: number;
  length: number;
  /** Where it begins in the log with both streams together. */
  start: number;
}

interface Part {
  at: number;
  stream: number;
  offset: number;
  end: number;
}

/**
 * Both streams together, in the order in which they were written: `before`, and at its end what has grown since. What
 * was shown stays in place. Where no times are known, stderr follows stdout.
 */
export function mergeStreams(
  marks: readonly Mark[],
  lengths: Record<number, number>,
  before: readonly Segment[] = [],
): Segment[] {
  const parts = [STDOUT, STDERR].flatMap((stream) => {
    const used = before.reduce((sum, one) => (one.stream === stream ? sum + one.length : sum), 0);
    return partsOf(marks, stream, used, lengths[stream] ?? 0);
  });
  parts.sort((a, b) => a.at - b.at);
  const segments = before.map((segment) => ({ ...segment }));
  for (const part of parts) {
    const last = segments.at(-1);
    const length = part.end - part.offset;
    if (last && last.stream === part.stream && last.offset + last.length === part.offset) last.length += length;
    else {
      const start = last ? last.start + last.length : 0;
      segments.push({ stream: part.stream, offset: part.offset, length, start });
    }
  }
  return segments;
}

/** A stream from `from` to `end`, cut where the time changes. */
function partsOf(marks: readonly Mark[], stream: number, from: number, end: number): Part[] {
  const parts: Part[] = [];
  let at = 0;
  let offset = from;
  for (const [time, , begin] of marksOf(marks, stream)) {
    if (begin > offset) {
      parts.push({ at, stream, offset, end: Math.min(begin, end) });
      offset = begin;
    }
    // The times of a stream never go back: a clock that was set back must not reorder what one program wrote.
    at = Math.max(at, time);
    if (begin >= end) break;
  }
  if (offset < end) parts.push({ at, stream, offset, end });
  return parts.filter((part) => part.end > part.offset);
}

function marksOf(marks: readonly Mark[], stream: number): Mark[] {
  return marks.filter((mark) => mark[1] === stream).sort((a, b) => a[2] - b[2]);
}

/** The segment that holds an offset of the merged log. */
export function segmentAt(segments: readonly Segment[], offset: number): Segment | undefined {
  let low = 0;
  let high = segments.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((segments[middle] as Segment).start <= offset) low = middle;
    else high = middle - 1;
  }
  const found = segments[low];
  return found && offset < found.start + found.length ? found : undefined;
}

/** When the byte at an offset of a stream was written; null if that is not known. */
export function timeAt(marks: readonly Mark[], stream: number, offset: number): number | null {
  const own = marksOf(marks, stream);
  let low = 0;
  let high = own.length - 1;
  if (high < 0 || (own[0] as Mark)[2] > offset) return null;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((own[middle] as Mark)[2] <= offset) low = middle;
    else high = middle - 1;
  }
  return (own[low] as Mark)[0];
}
