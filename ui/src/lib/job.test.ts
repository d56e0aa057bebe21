import { describe, expect, it } from "vitest";
import { explainEnd } from "./evidence";
import { tellingLine } from "./failures";
import { axisTicks, criticalPath, rangeOf, sortRows, zoomed } from "./gantt";
import { drawnGraph, keepPositions, labelPrefix, leadingState } from "./graph";
import { ownTagsFirst } from "./tags";
import { mergeTimeline, stripOf } from "./timeline";

const node = (label: string, state = "SUCCEEDED", depth = 0) => ({
  label,
  task_id: `id-${label}`,
  state,
  held: false,
  depth,
});

describe("the drawn graph", () => {
  const graph = {
    nodes: [
      node("build"),
      ...[1, 2, 3, 4].map((i) => node(`test-${i}`, i === 2 ? "FAILED" : "SUCCEEDED", 1)),
      node("report", "WAITING", 2),
    ],
    edges: [1, 2, 3, 4].flatMap((i): [number, number][] => [
      [0, i],
      [i, 5],
    ]),
    groups: [],
    group_edges: [],
  };

  it("stacks siblings that differ in a number only", () => {
    const drawn = drawnGraph(graph, new Set());
    expect(drawn.nodes.map((one) => [one.label, one.size])).toEqual([
      ["build", 1],
      ["test", 4],
      ["report", 1],
    ]);
    expect(drawn.edges).toEqual([
      [0, 1],
      [1, 2],
    ]);
    expect(leadingState(drawn.nodes[1]?.counts ?? {})).toBe("FAILED");
  });

  it("opens a stack", () => {
    const stack = drawnGraph(graph, new Set()).nodes[1]?.stack ?? "";
    expect(drawnGraph(graph, new Set([stack])).nodes.length).toBe(6);
  });

  it("draws groups of the server", () => {
    const groups = [
      { id: 0, prefix: "a", depth: 0, num_nodes: 3000, counts: { SUCCEEDED: 3000, RUNNING: 0 } },
      { id: 1, prefix: "b", depth: 1, num_nodes: 3000, counts: { SUCCEEDED: 0, RUNNING: 3000 } },
    ];
    const drawn = drawnGraph({ nodes: [], edges: [], groups, group_edges: [[0, 1, 3000]] }, new Set());
    expect(drawn.edges).toEqual([[0, 1]]);
    expect(drawn.nodes[1]?.group).toEqual({ prefix: "b", depth: 1 });
  });

  it("the values on stacked edges are summed up, and those that are not written have no size", () => {
    const edge_values = graph.edges.map((_, edge) => ({ edge, type: "Int64", size: edge % 2 === 0 ? 8 : null }));
    const drawn = drawnGraph({ ...graph, edge_values }, new Set());
    expect(drawn.values).toEqual(["32 B Int64 ×4", "Int64 ×4"]);
    expect(drawnGraph(graph, new Set()).values).toEqual(["", ""]);
  });

  it("never draws more than 500 nodes", () => {
    const nodes = Array.from({ length: 900 }, (_, i) => node(`x${i}y`));
    const drawn = drawnGraph({ nodes, edges: [[0, 899]], groups: [], group_edges: [] }, new Set());
    expect(drawn.nodes.length).toBe(500);
    expect(drawn.edges).toEqual([]);
  });

  it("keeps nodes where they were", () => {
    const before = new Map([["a", { x: 10, y: 10 }]]);
    const after = keepPositions(
      new Map([
        ["a", { x: 0, y: 0 }],
        ["b", { x: 5, y: 5 }],
      ]),
      before,
    );
    expect(after.get("a")).toEqual({ x: 10, y: 10 });
    expect(after.get("b")).toEqual({ x: 15, y: 15 });
  });

  it("names what labels share", () => {
    expect(labelPrefix("test-17")).toBe("test");
    expect(labelPrefix("42")).toBe("42");
  });
});

describe("times of a job", () => {
  const row = (label: string, ready: number | null, done: number | null) => ({
    label,
    task_id: label,
    state: "SUCCEEDED",
    bot_id: null,
    ready_at: ready,
    started_at: ready,
    completed_at: done,
    critical: false,
  });

  it("sorts rows and finds their range, also while the job runs", () => {
    const rows = [row("late", 50, null), row("never", null, null), row("early", 10, 20)];
    expect(sortRows(rows).map((one) => one.label)).toEqual(["early", "late", "never"]);
    expect(rangeOf(rows, 5000)).toEqual({ from: 10, to: 5000 });
    expect(rangeOf([], 5e6)).toEqual({ from: 4e6, to: 5e6 });
  });

  it("finds the critical path", () => {
    const tasks = [
      { label: "a", requires: [], ready_at: 0, completed_at: 10 },
      { label: "b", requires: [], ready_at: 0, completed_at: 30 },
      { label: "c", requires: ["a", "b"], ready_at: 30, completed_at: 40 },
    ];
    expect(criticalPath(tasks, 100)).toEqual(["b", "c"]);
    expect(criticalPath([], 100)).toEqual([]);
  });

  it("zooms within the job and has round ticks", () => {
    const limits = { from: 0, to: 100e6 };
    expect(zoomed(limits, 0.5, 0.5, limits)).toEqual({ from: 25e6, to: 75e6 });
    expect(zoomed(limits, 2, 0.5, limits)).toEqual(limits);
    expect(axisTicks(limits, 0, 5)).toEqual([0, 30e6, 60e6, 90e6]);
  });
});

describe("failures", () => {
  it("finds the line that tells most", () => {
    expect(tellingLine("ok\n\x1b[31mAssertionError: 3 != 4\x1b[0m\ncleaning up\n")).toBe("AssertionError: 3 != 4");
    expect(tellingLine("E       AssertionError: assert 3 == 4\n\ntests/test_cart.py:31: AssertionError\n")).toBe(
      "AssertionError: assert 3 == 4",
    );
    expect(tellingLine("one\ntwo\n")).toBe("two");
    expect(tellingLine("")).toBe("");
  });

  it("says why a run ended", () => {
    expect(
      explainEnd({ state: "FAILED", reason: "exit_code", exit_code: -9, evidence: { oom: true, signal: 9 } }),
    ).toEqual(["It was killed because the machine or its limit ran out of memory.", "It was ended by SIGKILL."]);
    expect(explainEnd({ state: "FAILED", reason: "exit_code", exit_code: 139 })[0]).toContain("SIGSEGV");
    expect(
      explainEnd({
        state: "BOT_DIED",
        reason: "bot_lost",
        exit_code: null,
        ended_at: 10e6,
        evidence: { last_heartbeat: 4e6 },
      }),
    ).toEqual([
      "The bot stopped answering while it ran this task.",
      "The bot's last heartbeat was 6 s before the run was given up.",
    ]);
    expect(explainEnd({ state: "FAILED", reason: "exit_code", exit_code: -11 })[0]).toContain("SIGSEGV");
    expect(explainEnd({ state: "SUCCEEDED", reason: "", exit_code: 0 })).toEqual([]);
    const error = { type: "builtins.ValueError", place: "report.py:8 in parse" };
    expect(explainEnd({ state: "FAILED", reason: "exit_code", exit_code: 1, error })).toEqual([
      "It raised ValueError at report.py:8 in parse.",
    ]);
  });
});

describe("the tags of a task", () => {
  it("begin with those that people gave", () => {
    expect(ownTagsFirst(["pool:ci", "branch:main", "swarming.pool.version:1", "user:x"])).toEqual([
      "branch:main",
      "pool:ci",
      "swarming.pool.version:1",
      "user:x",
    ]);
  });
});

describe("a bot's timeline", () => {
  const run = {
    task_id: "t",
    run: "t1",
    name: "x",
    state: "SUCCEEDED",
    reason: "",
    claimed_at: 50,
    started_at: 50,
    ended_at: 60,
    exit_code: 0,
    duration: 1,
  };

  it("has events and runs in one order and nothing twice", () => {
    const entries = mergeTimeline(
      [
        { at: 60, kind: "task_completed", message: "", run: "t1" },
        { at: 50, kind: "request_task", message: "", run: "t1" },
        { at: 40, kind: "request_sleep", message: "" },
        { at: 30, kind: "request_sleep", message: "" },
        { at: 10, kind: "bot_connected", message: "" },
      ],
      [run],
    );
    expect(entries.map((entry) => (entry.kind === "run" ? "run" : `${entry.event.kind} ${entry.repeats}`))).toEqual([
      "run",
      "request_sleep 2",
      "bot_connected 1",
    ]);
  });

  it("has the runs of the last day as a strip, and one that runs until now", () => {
    const now = 100_000e6;
    const long = { ...run, run: "long ago", started_at: now - 90_000e6 };
    const over = { ...run, run: "over", started_at: now - 300e6, ended_at: now - 200e6 };
    const runs = { ...run, run: "runs", started_at: now - 100e6, ended_at: null };
    const strip = stripOf(mergeTimeline([], [runs, over, long]), now);
    expect(strip.map((one) => [one.run.run, one.to - one.from])).toEqual([
      ["over", 100e6],
      ["runs", 100e6],
    ]);
  });
});
