import { describe, expect, it } from "vitest";
import { diffLines, withContext } from "./diff";

describe("the difference of two texts", () => {
  it("shows added and removed lines", () => {
    expect(diffLines("a\nb\nc", "a\nx\nc").map((line) => `${line.kind} ${line.text}`)).toEqual([
      "same a",
      "removed b",
      "added x",
      "same c",
    ]);
    expect(diffLines("", "")).toEqual([]);
    expect(diffLines("a\n", "a\nb\n").map((line) => `${line.kind} ${line.text}`)).toEqual(["same a", "added b"]);
  });

  it("leaves out what is far from a change", () => {
    const before = Array.from({ length: 20 }, (_, i) => `line ${i}`).join("\n");
    const shown = withContext(diffLines(before, before.replace("line 10", "changed")));
    expect(shown.length).toBe(10);
    expect(shown[0]).toBeNull();
  });
});
