import { describe, expect, it } from "vitest";
import { PLAIN, parseAnsi, stripAnsi } from "./ansi";

describe("colours of a log", () => {
  it("gives a plain line as one span without classes", () => {
    expect(parseAnsi("hello")).toEqual({ spans: [{ text: "hello", classes: "" }], end: PLAIN });
  });

  it("shows colours and ends them at a reset", () => {
    const { spans, end } = parseAnsi("\x1b[1;31mbad\x1b[0m good");
    expect(spans).toEqual([
      { text: "bad", classes: "ansi-1 ansi-bold" },
      { text: " good", classes: "" },
    ]);
    expect(end).toBe(PLAIN);
  });

  it("continues a style on the next line", () => {
    const first = parseAnsi("\x1b[32mgreen");
    expect(parseAnsi("still", first.end).spans[0]?.classes).toBe("ansi-2");
  });

  it("maps 256 and true colours to the 16 that both schemes can show", () => {
    expect(parseAnsi("\x1b[38;5;196mx").spans[0]?.classes).toBe("ansi-9");
    expect(parseAnsi("\x1b[38;2;0;0;255mx").spans[0]?.classes).toBe("ansi-12");
    expect(parseAnsi("\x1b[48;5;21mx").spans[0]?.classes).toBe("ansi-on-12");
  });

  it("removes every other escape sequence and control character", () => {
    expect(stripAnsi("a\x1b[2Kb\x1b[?25lc\x1b]0;title\x07d\x1b]8;;http://x\x1b\\e\x07f\x00\x9bg\x1b(Bh")).toBe(
      "abcdefgh",
    );
  });

  it("shows what a terminal shows after carriage returns", () => {
    expect(stripAnsi("10 %\r50 %\r100 %\r")).toBe("100 %");
  });

  it("ends on an incomplete sequence without losing text", () => {
    expect(stripAnsi("abc\x1b[3")).toBe("abc");
    expect(stripAnsi("abc\x1b")).toBe("abc");
  });

  it("keeps HTML as text", () => {
    expect(parseAnsi("<img src=x onerror=alert(1)>").spans[0]?.text).toBe("<img src=x onerror=alert(1)>");
  });
});
