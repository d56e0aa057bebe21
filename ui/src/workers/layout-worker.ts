/** Lays out a graph. The page ends the worker to cancel a layout that is not wanted any more. */
import { Graph, layout } from "@dagrejs/dagre";

export interface LayoutRequest {
  nodes: { id: string; width: number; height: number }[];
  edges: [number, number][];
  /** Between two ranks: edges with texts need more. */
  gap: number;
}

export interface LayoutAnswer {
  positions: [string, { x: number; y: number }][];
  width: number;
  height: number;
}

self.onmessage = (event: MessageEvent<LayoutRequest>) => {
  const { nodes, edges, gap } = event.data;
  const graph = new Graph();
  // tight-tree: network-simplex takes seconds from some thousand nodes on.
  graph.setGraph({ rankdir: "LR", ranker: "tight-tree", nodesep: 10, ranksep: gap, marginx: 8, marginy: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const { id, width, height } of nodes) graph.setNode(id, { width, height });
  for (const [a, b] of edges) graph.setEdge(nodes[a]?.id ?? "", nodes[b]?.id ?? "");
  layout(graph);
  const positions = nodes.map(({ id }): [string, { x: number; y: number }] => {
    const { x = 0, y = 0 } = graph.node(id) as { x?: number; y?: number };
    return [id, { x, y }];
  });
  const { width = 0, height = 0 } = graph.graph() as { width?: number; height?: number };
  const answer: LayoutAnswer = { positions, width, height };
  postMessage(answer);
};
