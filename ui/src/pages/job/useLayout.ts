import { useEffect, useRef, useState } from "react";
import { type DrawnGraph, keepPositions, type Point } from "../../lib/graph";
import type { LayoutAnswer, LayoutRequest } from "../../workers/layout-worker";

export const NODE_HEIGHT = 26;
/** Text is measured by its length: a canvas would be exact but is not needed for boxes. */
export const nodeWidth = (label: string, size: number) =>
  Math.min(240, Math.max(56, 34 + 7 * (label.length + (size > 1 ? 5 : 0))));

/** The room for the text of an edge. */
export const EDGE_TEXT_WIDTH = 96;

export interface Layout {
  positions: Map<string, Point>;
  /** Nothing was laid out yet. */
  empty: boolean;
  working: boolean;
}

/** Positions of the nodes. Computed in a worker when the structure changes; a change of states alone costs nothing. */
export function useLayout(graph: DrawnGraph): Layout {
  const [layout, setLayout] = useState<Layout>({ positions: new Map(), empty: true, working: true });
  const gap = graph.values.some((text) => text) ? EDGE_TEXT_WIDTH + 32 : 48;
  const structure = JSON.stringify([graph.nodes.map((node) => [node.id, node.label, node.size]), graph.edges, gap]);
  const latest = useRef(graph);
  latest.current = graph;
  // biome-ignore lint/correctness/useExhaustiveDependencies: the structure stands for the graph
  useEffect(() => {
    const { nodes, edges } = latest.current;
    if (nodes.length === 0) {
      setLayout({ positions: new Map(), empty: true, working: false });
      return;
    }
    setLayout((before) => ({ ...before, working: true }));
    const worker = new Worker(new URL("../../workers/layout-worker.ts", import.meta.url), { type: "module" });
    worker.onmessage = (event: MessageEvent<LayoutAnswer>) => {
      setLayout((before) => ({
        positions: keepPositions(new Map(event.data.positions), before.positions),
        empty: false,
        working: false,
      }));
      worker.terminate();
    };
    const request: LayoutRequest = {
      nodes: nodes.map((node) => ({ id: node.id, width: nodeWidth(node.label, node.size), height: NODE_HEIGHT })),
      edges,
      gap,
    };
    worker.postMessage(request);
    return () => worker.terminate();
  }, [structure]);
  return layout;
}
