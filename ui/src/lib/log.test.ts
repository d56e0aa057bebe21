import { describe, expect, it } from "vitest";
import {
  alignToLine,
  LogWindow,
  MAX_LINE_BYTES,
  type Mark,
  mergeStreams,
  segmentAt,
  spansOfLine,
  textOfLine,
  timeAt,
} from "./log";

const encode = (text: string) => new TextEncoder().encode(text);
const piece = (offset: number, text: string, stream = 0) => {
  const bytes = encode(text);
  return { offset, bytes, next: offset + bytes.length, stream };
};
const texts = (window: LogWindow) => window.lines.map(textOfLine);

describe("a window of a log", () => {
  it("splits lines and knows their offsets", () => {
    const window = new LogWindow();
    window.append(piece(0, "one\ntwo\r\nthr"));
    expect(texts(window)).toEqual(["one", "two", "thr"]);
    expect(window.lines.map((line) => line.offset)).toEqual([0, 4, 9]);
    window.append(piece(12, "ee\nfour\n"));
    expect(texts(window)).toEqual(["one", "two", "three", "four"]);
    expect(window.end).toBe(20);
  });

  it("ignores a piece that does not continue it", () => {
    const window = new LogWindow();
    window.append(piece(0, "a\n"));
    window.append(piece(7, "b\n"));
    expect(texts(window)).toEqual(["a"]);
  });

  it("grows at its beginning", () => {
    const window = new LogWindow();
    window.reset(8);
    window.append(piece(8, "three\n"));
    expect(window.firstNumber).toBeNull();
    expect(window.prepend([piece(0, "one\ntwo\n")])).toBe(2);
    expect(texts(window)).toEqual(["one", "two", "three"]);
    expect(window.firstNumber).toBe(1);
    expect(window.indexOf(5)).toBe(1);
    expect(window.indexOf(99)).toBe(-1);
  });

  it("shows a very long line in parts and never cuts a character", () => {
    const window = new LogWindow();
    const text = `x${"é".repeat(MAX_LINE_BYTES)}`;
    window.append(piece(0, text));
    expect(texts(window).join("")).toBe(text);
    expect(window.lines[0]?.continued).toBe(true);
    expect(window.lines.length).toBe(3);
  });

  it("shows bytes that are not UTF-8 as replacement characters", () => {
    const window = new LogWindow();
    window.append({ offset: 0, next: 3, stream: 0, bytes: new Uint8Array([0xff, 0xfe, 10]) });
    expect(texts(window)).toEqual(["��"]);
  });

  it("carries colours over lines, for each stream apart", () => {
    const window = new LogWindow();
    window.append(piece(0, "\x1b[31mred\n"));
    window.append(piece(9, "plain\n", 1));
    window.append(piece(15, "still red\n"));
    expect(window.lines.map((line) => spansOfLine(line)[0]?.classes)).toEqual(["ansi-1", "", "ansi-1"]);
  });

  it("forgets lines at either end", () => {
    const window = new LogWindow();
    window.append(piece(0, "a\nb\nc\nd\n"));
    expect(window.trimStart(3)).toBe(1);
    expect([window.start, window.firstNumber]).toEqual([2, 2]);
    window.trimEnd(2);
    expect(texts(window)).toEqual(["b", "c"]);
    expect(window.end).toBe(6);
    window.append(piece(6, "d\n"));
    expect(texts(window)).toEqual(["b", "c", "d"]);
  });

  it("begins at a line when it was opened in the middle", () => {
    expect(alignToLine(piece(5, "ne\ntwo\n")).offset).toBe(8);
    expect(alignToLine(piece(0, "one\n")).offset).toBe(0);
    expect(alignToLine(piece(5, "no newline")).offset).toBe(5);
  });

  it("keeps offsets below the next piece where bytes are missing", () => {
    const window = new LogWindow();
    window.append({ offset: 10, next: 10, stream: 0, bytes: encode("") });
    window.reset(10);
    window.append({ offset: 10, next: 14, stream: 0, bytes: encode("[9 bytes are missing]\nx\n") });
    expect(window.lines.every((line) => line.offset < 14)).toBe(true);
    expect(window.end).toBe(14);
  });
});

describe("two streams together", () => {
  const marks: Mark[] = [
    [100, 0, 0],
    [200, 1, 0],
    [300, 0, 4],
  ];

  it("orders them by when they were written", () => {
    expect(mergeStreams(marks, { 0: 10, 1: 3 })).toEqual([
      { stream: 0, offset: 0, length: 4, start: 0 },
      { stream: 1, offset: 0, length: 3, start: 4 },
      { stream: 0, offset: 4, length: 6, start: 7 },
    ]);
  });

  it("puts one after the other where no order is known", () => {
    expect(mergeStreams([], { 0: 4, 1: 3 }).map((one) => one.stream)).toEqual([0, 1]);
    expect(mergeStreams([], { 0: 0, 1: 0 })).toEqual([]);
  });

  it("keeps what was shown in place when a log grows", () => {
    const first = mergeStreams([], { 0: 4, 1: 3 });
    expect(mergeStreams([], { 0: 6, 1: 5 }, first)).toEqual([
      { stream: 0, offset: 0, length: 4, start: 0 },
      { stream: 1, offset: 0, length: 3, start: 4 },
      { stream: 0, offset: 4, length: 2, start: 7 },
      { stream: 1, offset: 3, length: 2, start: 9 },
    ]);
    const later: Mark[] = [...marks, [400, 1, 3]];
    const grown = mergeStreams(later, { 0: 10, 1: 6 }, mergeStreams(marks, { 0: 10, 1: 3 }));
    expect(grown.at(-1)).toEqual({ stream: 1, offset: 3, length: 3, start: 13 });
  });

  it("is the same in one step and in many", () => {
    const many: Mark[] = [
      [1, 0, 0],
      [2, 1, 0],
      [3, 0, 5],
      [4, 1, 5],
      [5, 0, 9],
    ];
    let grown = mergeStreams(many, { 0: 5, 1: 0 });
    grown = mergeStreams(many, { 0: 5, 1: 5 }, grown);
    grown = mergeStreams(many, { 0: 9, 1: 7 }, grown);
    expect(mergeStreams(many, { 0: 12, 1: 7 }, grown)).toEqual(mergeStreams(many, { 0: 12, 1: 7 }));
  });

  it("finds segments and times", () => {
    const segments = mergeStreams(marks, { 0: 10, 1: 3 });
    expect(segmentAt(segments, 6)?.stream).toBe(1);
    expect(segmentAt(segments, 13)).toBeUndefined();
    expect(timeAt(marks, 0, 5)).toBe(300);
    expect(timeAt(marks, 0, 3)).toBe(100);
    expect(timeAt([], 1, 3)).toBeNull();
  });
});
