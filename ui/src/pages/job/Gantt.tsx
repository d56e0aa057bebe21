import { useNavigate } from "@tanstack/react-router";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { ApiError, callJson, get, type Schemas } from "../../api/client";
import { useLive } from "../../api/live";
import { Button } from "../../components/Button";
import { Empty, Loaded } from "../../components/Feedback";
import { useNow } from "../../components/Time";
import { plural } from "../../lib/format";
import { criticalPath, type Range, type Row, rangeOf, sortRows, within, zoomed } from "../../lib/gantt";
import { isFinal, nameOf } from "../../lib/states";
import { serverNow, showDuration } from "../../lib/time";
import { useJob } from "./context";
import { AXIS_PX, drawGantt, labelWidth, ROW_PX } from "./drawGantt";

interface Timeline {
  num_tasks: number;
  rows: Row[];
}

const MAX_ROWS = 2000;

/** When each task waited and ran, with the critical path. Works while the job runs. */
export function Gantt() {
  const job = useJob();
  const id = job.job_id;
  const timeline = useLive<Timeline>({
    key: ["timeline", id],
    fetch: (signal) => fetchTimeline(id, signal),
    topics: [`job:${id}`],
    settled: () => isFinal(job.state),
    keepPrevious: true,
  });
  return (
    <Loaded query={timeline} what="The timeline">
      {(data) => <GanttView timeline={data} running={!isFinal(job.state)} />}
    </Loaded>
  );
}

async function fetchTimeline(id: string, signal: AbortSignal): Promise<Timeline> {
  try {
    return await callJson<Timeline>("get", "/api/v1/jobs/{id}/timeline", {
      path: { id },
      query: { limit: MAX_ROWS },
      signal,
    });
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
    return timelineFromTasks(id, signal);
  }
}

/** The same from the list of tasks, for a server without the call. */
async function timelineFromTasks(id: string, signal: AbortSignal): Promise<Timeline> {
  const tasks: Schemas["JobTask"][] = [];
  let cursor: string | null = "";
  while (cursor !== null && tasks.length < MAX_ROWS) {
    const page: Schemas["JobTasks"] = await get("/api/v1/jobs/{id}/tasks", {
      path: { id },
      query: { limit: 500, cursor },
      signal,
    });
    tasks.push(...page.tasks);
    cursor = page.cursor ?? null;
  }
  const path = criticalPath(
    tasks.map((task) => ({ ...task, ready_at: task.ready_at ?? null, completed_at: task.completed_at ?? null })),
    serverNow(),
  );
  const critical = new Set(path);
  return {
    num_tasks: tasks.length,
    rows: tasks.map((task) => ({ ...task, critical: critical.has(task.label) }) as Row),
  };
}

function GanttView({ timeline, running }: { timeline: Timeline; running: boolean }) {
  const navigate = useNavigate();
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [chosen, setChosen] = useState<Range | null>(null);
  const [scroll, setScroll] = useState({ top: 0, width: 0, height: 0 });
  const [hover, setHover] = useState<{ row: Row; x: number; y: number } | null>(null);
  const now = useNow(running ? 1000 : 60_000);
  const rows = useMemo(() => sortRows(timeline.rows), [timeline]);
  const limits = rangeOf(rows, now);
  const range = chosen ? within(chosen, limits) : limits;

  const measure = useCallback(() => {
    const element = box.current;
    if (element) setScroll({ top: element.scrollTop, width: element.clientWidth, height: element.clientHeight });
  }, []);
  useEffect(() => {
    measure();
    const observer = new ResizeObserver(measure);
    if (box.current) observer.observe(box.current);
    return () => observer.disconnect();
  }, [measure]);

  useEffect(() => {
    if (canvas.current && scroll.width > 0) {
      drawGantt(canvas.current, {
        rows,
        range,
        origin: limits.from,
        now,
        top: scroll.top,
        width: scroll.width,
        height: scroll.height,
      });
    }
  });
  useEffect(() => {
    const media = window.matchMedia("(prefers-color-scheme: dark)");
    media.addEventListener("change", measure);
    return () => media.removeEventListener("change", measure);
  }, [measure]);

  const zoom = (factor: number, place = 0.5) => setChosen(zoomed(range, factor, place, limits));
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const onWheel = (event: WheelEvent) => {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        const rect = element.getBoundingClientRect();
        const labels = labelWidth(rect.width);
        const place = Math.max(0, Math.min(1, (event.clientX - rect.left - labels) / (rect.width - labels)));
        setChosen(zoomed(range, Math.exp(event.deltaY / 400), place, limits));
      } else if (event.deltaX !== 0) {
        event.preventDefault();
        const shift = ((range.to - range.from) * event.deltaX) / Math.max(1, element.clientWidth);
        setChosen(within({ from: range.from + shift, to: range.to + shift }, limits));
      }
    };
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => element.removeEventListener("wheel", onWheel);
  });

  const rowAt = (event: React.MouseEvent): Row | undefined => {
    const rect = box.current?.getBoundingClientRect();
    const y = event.clientY - (rect?.top ?? 0) - AXIS_PX;
    return y < 0 ? undefined : rows[Math.floor((y + scroll.top) / ROW_PX)];
  };
  if (rows.length === 0) return <Empty title="This job has no tasks" />;
  const critical = rows.filter((row) => row.critical);
  return (
    <div className="space-y-2">
      <div className="flex flex-wrap items-center gap-2 text-dim">
        <Button aria-label="Zoom in" onClick={() => zoom(0.5)}>
          +
        </Button>
        <Button aria-label="Zoom out" onClick={() => zoom(2)}>
          −
        </Button>
        <Button onClick={() => setChosen(null)}>Fit</Button>
        <Legend />
        <span className="w-full md:ml-auto md:w-auto">
          {rows.length < timeline.num_tasks ? `the first ${rows.length} of ` : ""}
          {plural(timeline.num_tasks, "task")}, {showDuration((limits.to - limits.from) / 1e6)}
        </span>
      </div>
      <div
        ref={box}
        tabIndex={0}
        role="img"
        aria-label={`Times of ${plural(rows.length, "task")}; the Tasks view has them as a table`}
        onScroll={measure}
        onMouseMove={(event) => {
          const row = rowAt(event);
          const rect = box.current?.getBoundingClientRect();
          setHover(row && rect ? { row, x: event.clientX - rect.left, y: event.clientY - rect.top } : null);
        }}
        onMouseLeave={() => setHover(null)}
        onClick={(event) => {
          const row = rowAt(event);
          if (row) void navigate({ to: "/tasks/$id", params: { id: row.task_id } });
        }}
        className="relative max-h-[70vh] cursor-pointer overflow-y-auto overflow-x-hidden rounded border border-line"
        style={{ height: AXIS_PX + rows.length * ROW_PX + 2 }}
      >
        <div style={{ height: AXIS_PX + rows.length * ROW_PX }}>
          <canvas ref={canvas} className="sticky left-0 top-0 block" />
        </div>
        {hover && <Tip row={hover.row} x={hover.x} y={hover.y + scroll.top} now={now} width={scroll.width} />}
      </div>
      {critical.length > 0 && (
        <p>
          <span className="font-semibold">Critical path:</span>{" "}
          {critical
            .slice(0, 20)
            .map((row) => row.label)
            .join(" → ")}
          {critical.length > 20 ? " → …" : ""}
          <span className="text-dim">
            {" "}
            (waited {showDuration(total(critical, "wait", now))}, ran {showDuration(total(critical, "run", now))})
          </span>
        </p>
      )}
    </div>
  );
}

function total(rows: Row[], what: "wait" | "run", now: number): number {
  return rows.reduce((sum, row) => {
    if (what === "run") return sum + (row.started_at ? (row.completed_at ?? now) - row.started_at : 0) / 1e6;
    return sum + (row.ready_at ? Math.max(0, (row.started_at ?? row.completed_at ?? now) - row.ready_at) : 0) / 1e6;
  }, 0);
}

function Legend() {
  return (
    <span className="flex flex-wrap items-center gap-x-3">
      <span className="flex items-center gap-1">
        <span className="inline-block h-2.5 w-5 border border-dim" /> waited
      </span>
      <span className="flex items-center gap-1">
        <span className="inline-block h-2.5 w-5 bg-good" /> ran
      </span>
      <span className="flex items-center gap-1">
        <span className="inline-block h-2.5 w-5 border-b-2 border-text bg-good" /> critical path
      </span>
    </span>
  );
}

function Tip({ row, x, y, now, width }: { row: Row; x: number; y: number; now: number; width: number }) {
  const waited = row.ready_at ? ((row.started_at ?? row.completed_at ?? now) - row.ready_at) / 1e6 : null;
  const ran = row.started_at ? ((row.completed_at ?? now) - row.started_at) / 1e6 : null;
  return (
    <div
      className="pointer-events-none absolute z-10 w-60 rounded border border-line-strong bg-raised p-2"
      style={{ left: Math.max(0, Math.min(x + 12, width - 250)), top: y + 14 }}
    >
      <div className="font-semibold [overflow-wrap:anywhere]">{row.label}</div>
      <div className="text-dim">
        {nameOf(row.state)}
        {row.bot_id && ` on ${row.bot_id}`}
      </div>
      {waited !== null && <div>waited {showDuration(Math.max(0, waited))}</div>}
      {ran !== null && <div>ran {showDuration(ran)}</div>}
      {row.critical && <div className="text-dim">on the critical path</div>}
    </div>
  );
}
