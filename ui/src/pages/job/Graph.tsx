import { useNavigate } from "@tanstack/react-router";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { get, type Schemas } from "../../api/client";
import { useLive } from "../../api/live";
import { Button } from "../../components/Button";
import { Empty, Loaded } from "../../components/Feedback";
import { StateIcon } from "../../components/StateBadge";
import { plural } from "../../lib/format";
import { type DrawnGraph, type DrawnNode, drawnGraph, leadingState, MAX_DRAWN, type Point } from "../../lib/graph";
import { isFinal, lookOf, nameOf, type Tone } from "../../lib/states";
import { useJob } from "./context";
import { EDGE_TEXT_WIDTH, NODE_HEIGHT, nodeWidth, useLayout } from "./useLayout";

type GraphData = Schemas["JobGraph"];

/** The graph of a job: live, with zoom and pan; large graphs in groups that open on click. */
export function Graph() {
  const job = useJob();
  const id = job.job_id;
  const [group, setGroup] = useState<{ prefix: string; depth: number } | null>(null);
  const [opened, setOpened] = useState<ReadonlySet<string>>(new Set());
  const graph = useLive<GraphData>({
    key: ["graph", id, group?.prefix ?? "", group?.depth ?? -1, job.num_tasks],
    fetch: (signal) =>
      get("/api/v1/jobs/{id}/graph", {
        path: { id },
        query: { max_nodes: MAX_DRAWN, values: true, ...(group ? { prefix: group.prefix, depth: group.depth } : {}) },
        signal,
      }),
    topics: [`job:${id}`],
    settled: () => isFinal(job.state),
    keepPrevious: true,
  });
  return (
    <Loaded query={graph} what="The graph">
      {(data) => (
        <GraphView
          data={data}
          opened={opened}
          onOpen={(node) => {
            if (node.group) setGroup(node.group);
            else if (node.stack) setOpened(new Set([...opened, node.stack]));
          }}
          back={group ? { label: group.prefix || `depth ${group.depth}`, go: () => setGroup(null) } : null}
          onCollapse={opened.size > 0 ? () => setOpened(new Set()) : null}
        />
      )}
    </Loaded>
  );
}

interface ViewProps {
  data: GraphData;
  opened: ReadonlySet<string>;
  onOpen: (node: DrawnNode) => void;
  back: { label: string; go: () => void } | null;
  onCollapse: (() => void) | null;
}

function GraphView({ data, opened, onOpen, back, onCollapse }: ViewProps) {
  const drawn = useMemo(() => drawnGraph(data, opened), [data, opened]);
  const layout = useLayout(drawn);
  const shown = drawn.nodes.reduce((sum, node) => sum + node.size, 0);
  if (drawn.nodes.length === 0) return <Empty title="This job has no tasks" />;
  return (
    <div className="space-y-2">
      <div className="flex flex-wrap items-center gap-2 text-dim">
        {back && <Button onClick={back.go}>← All groups ({back.label})</Button>}
        {onCollapse && <Button onClick={onCollapse}>Stack siblings</Button>}
        <span>
          {plural(data.num_nodes, "task")}, {plural(data.num_edges, "edge")}
          {shown < data.num_nodes ? `, the first ${shown} are drawn` : ""}
        </span>
        {layout.working && <span role="status">laying out …</span>}
      </div>
      <Canvas graph={drawn} positions={layout.positions} onOpen={onOpen} />
      <p className="text-dim">Drag to move, scroll with Ctrl to zoom. The Tasks view lists the same tasks.</p>
    </div>
  );
}

const MAX_EDGE_TEXT = 17;
const FILL: Record<Tone, string> = {
  good: "fill-good-soft stroke-good",
  bad: "fill-bad-soft stroke-bad",
  warn: "fill-warn-soft stroke-warn",
  run: "fill-run-soft stroke-run",
  wait: "fill-wait-soft stroke-wait",
  off: "fill-off-soft stroke-line-strong",
};

interface View {
  x: number;
  y: number;
  scale: number;
}

function Canvas({
  graph,
  positions,
  onOpen,
}: {
  graph: DrawnGraph;
  positions: Map<string, Point>;
  onOpen: (node: DrawnNode) => void;
}) {
  const navigate = useNavigate();
  const box = useRef<SVGSVGElement>(null);
  const [view, setView] = useState<View | null>(null);
  const drag = useRef<{ x: number; y: number; view: View; moved: boolean } | null>(null);
  const height = heightOf(positions, graph, box.current);
  const fitted = useCallback(() => fitView(positions, graph, box.current, height), [positions, graph, height]);
  const current = view ?? fitted();

  const zoom = useCallback(
    (factor: number, at?: { x: number; y: number }) => {
      const rect = box.current?.getBoundingClientRect();
      const centre = at ?? { x: (rect?.width ?? 0) / 2, y: (rect?.height ?? 0) / 2 };
      setView((before) => {
        const from = before ?? fitted();
        const scale = Math.max(0.05, Math.min(3, from.scale * factor));
        const ratio = scale / from.scale;
        return { scale, x: centre.x - (centre.x - from.x) * ratio, y: centre.y - (centre.y - from.y) * ratio };
      });
    },
    [fitted],
  );

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const onWheel = (event: WheelEvent) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const rect = element.getBoundingClientRect();
      zoom(Math.exp(-event.deltaY / 300), { x: event.clientX - rect.left, y: event.clientY - rect.top });
    };
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => element.removeEventListener("wheel", onWheel);
  }, [zoom]);

  const open = (node: DrawnNode) => {
    if (drag.current?.moved) return;
    if (node.taskId) void navigate({ to: "/tasks/$id", params: { id: node.taskId } });
    else onOpen(node);
  };
  return (
    <div className="relative">
      <div className="absolute right-2 top-2 z-10 flex gap-1">
        <Button aria-label="Zoom in" onClick={() => zoom(1.3)}>
          +
        </Button>
        <Button aria-label="Zoom out" onClick={() => zoom(1 / 1.3)}>
          −
        </Button>
        <Button onClick={() => setView(null)}>Fit</Button>
      </div>
      <svg
        ref={box}
        role="group"
        aria-label="Graph of the job"
        className="w-full touch-none rounded border border-line bg-bg"
        style={{ height }}
        onPointerDown={(event) => {
          drag.current = { x: event.clientX, y: event.clientY, view: current, moved: false };
        }}
        onPointerMove={(event) => {
          const start = drag.current;
          if (!start || event.buttons === 0) return;
          const dx = event.clientX - start.x;
          const dy = event.clientY - start.y;
          if (Math.abs(dx) + Math.abs(dy) < 4) return;
          start.moved = true;
          setView({ ...start.view, x: start.view.x + dx, y: start.view.y + dy });
        }}
      >
        <g transform={`translate(${current.x} ${current.y}) scale(${current.scale})`}>
          {graph.edges.map(([a, b], i) => (
            <Edge
              key={`${a} ${b}`}
              from={graph.nodes[a]}
              to={graph.nodes[b]}
              text={graph.values[i] ?? ""}
              positions={positions}
            />
          ))}
          {graph.nodes.map((node) => (
            <Node key={node.id} node={node} at={positions.get(node.id)} onOpen={() => open(node)} />
          ))}
        </g>
      </svg>
    </div>
  );
}

const MARGIN = 16;
const MIN_HEIGHT = 160;
/** A graph of at most so many nodes is drawn large enough to be read, even if it is wider than the screen then. */
const READ_AT_ONCE = 40;
const READABLE = 0.8;

interface Bounds {
  minX: number;
  minY: number;
  maxX: number;
  maxY: number;
}

function boundsOf(positions: Map<string, Point>, graph: DrawnGraph): Bounds | null {
  let [minX, minY, maxX, maxY] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const node of graph.nodes) {
    const at = positions.get(node.id);
    if (!at) continue;
    const half = nodeWidth(node.label, node.size) / 2;
    minX = Math.min(minX, at.x - half);
    maxX = Math.max(maxX, at.x + half);
    minY = Math.min(minY, at.y - NODE_HEIGHT / 2);
    maxY = Math.max(maxY, at.y + NODE_HEIGHT / 2);
  }
  return minX > maxX ? null : { minX, minY, maxX, maxY };
}

/** The scale at which the graph is as wide as the box. */
function scaleOf({ minX, maxX }: Bounds, graph: DrawnGraph, width: number): number {
  const least = graph.nodes.length <= READ_AT_ONCE ? READABLE : 0.1;
  return Math.max(least, Math.min(1.2, (width - 2 * MARGIN) / (maxX - minX)));
}

/** As high as the graph needs, but at most a part of the window. */
function heightOf(positions: Map<string, Point>, graph: DrawnGraph, box: SVGSVGElement | null): number {
  const most = Math.max(320, window.innerHeight * 0.6);
  const bounds = boundsOf(positions, graph);
  if (!bounds) return MIN_HEIGHT;
  const scale = scaleOf(bounds, graph, box?.clientWidth || 800);
  return Math.round(Math.max(MIN_HEIGHT, Math.min(most, (bounds.maxY - bounds.minY) * scale + 6 * MARGIN)));
}

function fitView(positions: Map<string, Point>, graph: DrawnGraph, box: SVGSVGElement | null, height: number): View {
  const width = box?.clientWidth || 800;
  const bounds = boundsOf(positions, graph);
  if (!bounds) return { x: 0, y: 0, scale: 1 };
  const { minX, minY, maxX, maxY } = bounds;
  const byHeight = graph.nodes.length <= READ_AT_ONCE ? READABLE : 0.1;
  const scale = Math.min(
    scaleOf(bounds, graph, width),
    Math.max(byHeight, (height - 2 * MARGIN) / Math.max(1, maxY - minY)),
  );
  const isWide = (maxX - minX) * scale > width - 2 * MARGIN;
  const x = isWide ? MARGIN - minX * scale : (width - (minX + maxX) * scale) / 2;
  return { scale, x, y: (height - (minY + maxY) * scale) / 2 };
}

function Edge({
  from,
  to,
  text,
  positions,
}: {
  from: DrawnNode | undefined;
  to: DrawnNode | undefined;
  text: string;
  positions: Map<string, Point>;
}) {
  if (!from || !to) return null;
  const a = positions.get(from.id);
  const b = positions.get(to.id);
  if (!a || !b) return null;
  const x1 = a.x + nodeWidth(from.label, from.size) / 2;
  const x2 = b.x - nodeWidth(to.label, to.size) / 2;
  const middle = (x1 + x2) / 2;
  const path = `M${x1} ${a.y}C${middle} ${a.y} ${middle} ${b.y} ${x2} ${b.y}`;
  if (!text) return <path d={path} className="fill-none stroke-line-strong" />;
  // Near the child: edges of one parent begin together and end apart.
  const x = x2 - EDGE_TEXT_WIDTH / 2 - 6;
  return (
    <g>
      <title>{`${from.label} → ${to.label}: ${text}`}</title>
      <path d={path} className="fill-none stroke-line-strong" />
      <text
        x={x}
        y={b.y - 4}
        textAnchor="middle"
        className="fill-dim stroke-bg stroke-[3px] text-[10px] [paint-order:stroke]"
      >
        {text.length > MAX_EDGE_TEXT ? `${text.slice(0, MAX_EDGE_TEXT - 1)}…` : text}
      </text>
    </g>
  );
}

function Node({ node, at, onOpen }: { node: DrawnNode; at: Point | undefined; onOpen: () => void }) {
  if (!at) return null;
  const state = leadingState(node.counts);
  const width = nodeWidth(node.label, node.size);
  const counts = Object.entries(node.counts)
    .map(([one, n]) => `${n} ${nameOf(one)}`)
    .join(", ");
  const text = node.size > 1 ? `${node.label} ×${node.size}` : node.label;
  const title = `${text}: ${node.size > 1 ? counts : nameOf(state)}${node.held ? ", held" : ""}`;
  const max = Math.floor((width - 30) / 7);
  return (
    <g
      role="button"
      tabIndex={0}
      aria-label={title}
      transform={`translate(${at.x - width / 2} ${at.y - NODE_HEIGHT / 2})`}
      className="cursor-pointer"
      onClick={onOpen}
      onKeyDown={(event) => event.key === "Enter" && onOpen()}
    >
      <title>{title}</title>
      {node.size > 1 && (
        <rect x={4} y={4} width={width} height={NODE_HEIGHT} rx={4} className="fill-bg stroke-line-strong" />
      )}
      <rect width={width} height={NODE_HEIGHT} rx={4} className={FILL[lookOf(state).tone]} />
      <svg x={5} y={5} width={16} height={16} aria-hidden="true">
        <StateIcon state={state} />
      </svg>
      <text x={25} y={17} className="fill-text text-[12px]">
        {text.length > max ? `${text.slice(0, max - 1)}…` : text}
      </text>
    </g>
  );
}
