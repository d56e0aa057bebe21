/** The graph of a job as it is drawn: siblings stacked, groups of the server as nodes, at most MAX_DRAWN of them. */

import { showBytes } from "./format";

export const MAX_DRAWN = 500;
/** So many alike siblings become one node. */
const MIN_STACK = 4;

export interface DrawnNode {
  /** Stable over updates, so that positions can be kept. */
  id: string;
  label: string;
  /** How many tasks it stands for. */
  size: number;
  counts: Record<string, number>;
  taskId: string | null;
  held: boolean;
  /** Set for a group of the server that can be opened: its prefix and depth. */
  group: { prefix: string; depth: number } | null;
  /** Set for a stack of siblings: the key that opens it. */
  stack: string | null;
}

export interface DrawnGraph {
  nodes: DrawnNode[];
  edges: [number, number][];
  /** By edge: what passes along it, such as "Int64, 8 B"; empty for edges without values. */
  values: string[];
}

interface GraphInput {
  nodes: { label: string; task_id: string; state: string; held: boolean; depth: number }[];
  edges: [number, number][];
  groups: { id: number; prefix: string; depth: number; num_nodes: number; counts: Record<string, number> }[];
  group_edges: [number, number, number][];
  edge_values?: { edge: number; type: string; size: number | null }[];
}

export function labelPrefix(label: string): string {
  return label.replace(/[-_./: ]?\d+$/, "") || label;
}

export function drawnGraph(graph: GraphInput, opened: ReadonlySet<string>): DrawnGraph {
  if (graph.groups.length > 0) return groupGraph(graph);
  return stackSiblings(graph, opened);
}

function groupGraph(graph: GraphInput): DrawnGraph {
  const groups = graph.groups.slice(0, MAX_DRAWN);
  const index = new Map(groups.map((group, i) => [group.id, i]));
  const nodes = groups.map(
    (group): DrawnNode => ({
      id: `g${group.depth}/${group.prefix}`,
      label: group.prefix || `depth ${group.depth}`,
      size: group.num_nodes,
      counts: group.counts,
      taskId: null,
      held: false,
      group: { prefix: group.prefix, depth: group.depth },
      stack: null,
    }),
  );
  const edges = mapEdges(
    graph.group_edges.map(([a, b]) => [a, b]),
    index,
  );
  return { nodes, edges, values: edges.map(() => "") };
}

/** Nodes with equal parents, equal children and labels that differ in a number only are drawn as one. */
function stackSiblings(graph: GraphInput, opened: ReadonlySet<string>): DrawnGraph {
  const parents: number[][] = graph.nodes.map(() => []);
  const children: number[][] = graph.nodes.map(() => []);
  for (const [a, b] of graph.edges) {
    children[a]?.push(b);
    parents[b]?.push(a);
  }
  const keys = graph.nodes.map((node, i) => `${labelPrefix(node.label)}|${sorted(parents[i])}|${sorted(children[i])}`);
  const members = new Map<string, number[]>();
  keys.forEach((key, i) => {
    const list = members.get(key);
    if (list) list.push(i);
    else members.set(key, [i]);
  });
  const nodes: DrawnNode[] = [];
  const index = new Map<number, number>();
  for (const [key, list] of members) {
    const stackId = `${key.slice(0, key.indexOf("|"))}@${graph.nodes[list[0] ?? 0]?.depth ?? 0}`;
    if (list.length >= MIN_STACK && !opened.has(stackId)) {
      for (const i of list) index.set(i, nodes.length);
      nodes.push(
        stackNode(
          stackId,
          list.map((i) => graph.nodes[i] as GraphInput["nodes"][number]),
        ),
      );
      continue;
    }
    for (const i of list) {
      index.set(i, nodes.length);
      nodes.push(plainNode(graph.nodes[i] as GraphInput["nodes"][number]));
    }
  }
  const drawn = nodes.slice(0, MAX_DRAWN);
  for (const [i, at] of index) if (at >= drawn.length) index.delete(i);
  const edges = mapEdges(graph.edges, index);
  return { nodes: drawn, edges, values: valuesOf(graph, index, edges) };
}

/** What passes along each drawn edge, which may stand for many edges of the graph. */
function valuesOf(graph: GraphInput, index: Map<number, number>, edges: [number, number][]): string[] {
  const found = new Map<string, { types: Set<string>; count: number; size: number; open: boolean }>();
  for (const value of graph.edge_values ?? []) {
    const [a, b] = graph.edges[value.edge] ?? [-1, -1];
    const key = `${index.get(a)} ${index.get(b)}`;
    const sum = found.get(key) ?? { types: new Set<string>(), count: 0, size: 0, open: false };
    sum.types.add(value.type);
    sum.count++;
    sum.size += value.size ?? 0;
    sum.open ||= value.size === null;
    found.set(key, sum);
  }
  return edges.map(([a, b]) => {
    const sum = found.get(`${a} ${b}`);
    if (!sum) return "";
    const what = sum.types.size === 1 ? [...sum.types].join() : `${sum.count} values`;
    const times = sum.types.size === 1 && sum.count > 1 ? ` ×${sum.count}` : "";
    // The size first: a long type is cut.
    return `${sum.open && sum.size === 0 ? "" : `${showBytes(sum.size)} `}${what}${times}`;
  });
}

function sorted(list: number[] | undefined): string {
  return [...(list ?? [])].sort((a, b) => a - b).join(",");
}

function plainNode(node: GraphInput["nodes"][number]): DrawnNode {
  return {
    id: node.task_id,
    label: node.label,
    size: 1,
    counts: { [node.state]: 1 },
    taskId: node.task_id,
    held: node.held,
    group: null,
    stack: null,
  };
}

function stackNode(id: string, members: GraphInput["nodes"]): DrawnNode {
  const counts: Record<string, number> = {};
  for (const member of members) counts[member.state] = (counts[member.state] ?? 0) + 1;
  return {
    id: `s${id}`,
    label: labelPrefix(members[0]?.label ?? ""),
    size: members.length,
    counts,
    taskId: null,
    held: members.some((member) => member.held),
    group: null,
    stack: id,
  };
}

function mapEdges(edges: [number, number][], index: Map<number, number>): [number, number][] {
  const seen = new Set<string>();
  const mapped: [number, number][] = [];
  for (const [a, b] of edges) {
    const from = index.get(a);
    const to = index.get(b);
    if (from === undefined || to === undefined || from === to) continue;
    const key = `${from} ${to}`;
    if (!seen.has(key)) mapped.push([from, to]);
    seen.add(key);
  }
  return mapped;
}

/** The state that tells most about many tasks: a failure, then what runs, then what waits. */
export function leadingState(counts: Record<string, number>): string {
  const order = [
    "FAILED",
    "TIMED_OUT",
    "CLIENT_ERROR",
    "BOT_DIED",
    "NO_RESOURCE",
    "EXPIRED",
    "RUNNING",
    "READY",
    "WAITING",
    "KILLED",
    "CANCELLED",
    "SUCCEEDED",
  ];
  return order.find((state) => counts[state]) ?? Object.keys(counts)[0] ?? "WAITING";
}

export interface Point {
  x: number;
  y: number;
}

/** Moves a new layout so that nodes which were there before stay, on average, where they were. */
export function keepPositions(next: Map<string, Point>, before: ReadonlyMap<string, Point>): Map<string, Point> {
  let dx = 0;
  let dy = 0;
  let n = 0;
  for (const [id, point] of next) {
    const old = before.get(id);
    if (!old) continue;
    dx += old.x - point.x;
    dy += old.y - point.y;
    n++;
  }
  if (n === 0) return next;
  return new Map([...next].map(([id, { x, y }]) => [id, { x: x + dx / n, y: y + dy / n }]));
}
