import { describe, expect, it } from "vitest";
import { topicsOf } from "../workers/live-protocol";
import { asRunCommand, commandLine, quote, toPython } from "./command";
import { showBytes, splitTag } from "./format";
import { listOf, parseSearch, safeReturn, stringifySearch } from "./search";
import { isFailure, isFinal } from "./states";
import { parsePeriod, showDuration, showRelative } from "./time";

describe("times", () => {
  it("shows durations in at most two units", () => {
    expect(showDuration(0.0129)).toBe("13 ms");
    expect(showDuration(9.94)).toBe("9.9 s");
    expect(showDuration(59.97)).toBe("1 min");
    expect(showDuration(3725)).toBe("1 h 2 min");
    expect(showDuration(90061)).toBe("1 d 1 h");
    expect(showDuration(0)).toBe("0 s");
  });

  it("shows times before and after now", () => {
    expect(showRelative(0, 61e6)).toBe("1 min ago");
    expect(showRelative(3600e6, 0)).toBe("in 1 h");
    expect(showRelative(1e6, 1.5e6)).toBe("just now");
  });

  it("reads periods as the command line does", () => {
    expect(parsePeriod("15m")).toBe(900);
    expect(parsePeriod("90")).toBe(90);
    expect(parsePeriod("soon")).toBeNull();
  });
});

describe("addresses", () => {
  it("keeps an id that looks like a number as a text", () => {
    expect(parseSearch("?id=7063e50001000&id=0x10").id).toEqual(["7063e50001000", "0x10"]);
    expect(stringifySearch({ tag: ["a:b", "c:d"], name: "", bot: undefined })).toBe("?tag=a%3Ab&tag=c%3Ad");
    expect(listOf({ tag: "x" }, "tag")).toEqual(["x"]);
  });

  it("returns only to paths of this server", () => {
    expect(safeReturn("/tasks?state=FAILED")).toBe("/tasks?state=FAILED");
    for (const bad of [
      "//evil.example",
      "/\\evil.example",
      "https://evil.example",
      "javascript:alert(1)",
      "/a\u0000b",
    ]) {
      expect(safeReturn(bad)).toBe("/");
    }
  });
});

describe("commands", () => {
  it("quotes words for a shell", () => {
    expect(quote("plain-1.2")).toBe("plain-1.2");
    expect(quote("it's $HOME")).toBe(`'it'\\''s $HOME'`);
    expect(quote("")).toBe("''");
    expect(commandLine("a", null, "b c")).toBe("a 'b c'");
  });

  it("gives the command that submits the same task", () => {
    const task = {
      name: "build it",
      priority: 50,
      tags: ["build:1", "pool:ci", "user:none", "os:Linux"],
      properties: { command: ["make", "-j 4"], dimensions: { pool: ["ci"], os: ["Linux"] }, env: { CI: "1" } },
    };
    expect(asRunCommand(task)).toBe(
      "myrmidon run --name 'build it' --priority 50 --pool ci -d os=Linux -e CI=1 -t build:1 -- make '-j 4'",
    );
  });

  it("writes Python literals", () => {
    expect(toPython({ a: [1, true, null], b: {} })).toBe('{\n    "a": [1, True, None],\n    "b": {},\n}');
  });
});

describe("small things", () => {
  it("knows which states are final and which are failures", () => {
    expect(isFinal("READY")).toBe(false);
    expect(isFinal("KILLED")).toBe(true);
    expect(isFailure("KILLED")).toBe(false);
    expect(isFailure("NO_RESOURCE")).toBe(true);
  });

  it("shows sizes and splits tags at the first colon", () => {
    expect(showBytes(12_345_678)).toBe("12.3 MB");
    expect(showBytes(999)).toBe("999 B");
    expect(splitTag("a:b:c")).toEqual(["a", "b:c"]);
  });

  it("derives the topics of a frame", () => {
    expect(
      topicsOf({
        tasks: [{ id: "1", seq: 1, state: "READY", at: 1, about: { job: "2" } }],
        bots: ["b"],
        logs: [{ run: "11", stdout: 1, stderr: 0 }],
      }).sort(),
    ).toEqual(["bot:b", "bots", "job:2", "log:11", "task:1", "tasks"].sort());
  });
});
