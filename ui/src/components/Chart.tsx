import { useEffect, useRef } from "react";
import uPlot from "uplot";
import { showNumber } from "../lib/format";

export interface Series {
  label: string;
  /** A colour of the page, such as "good" or "bad". */
  color: string;
  values: (number | null)[];
  fill?: boolean;
}

interface Props {
  title: string;
  /** The first moment and the distance between two, in microseconds. */
  start: number;
  step: number;
  series: Series[];
  height?: number;
  show?: (value: number) => string;
  /** The top of the axis is at least this. */
  max?: number;
}

/** A chart over time. The same numbers are in its label for readers of the screen. */
export function Chart({ title, start, step, series, height = 140, show = showNumber, max = 1 }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shape = JSON.stringify([series.map((one) => [one.label, one.color, one.fill]), height, max]);
  const latest = useRef({ series, show });
  latest.current = { series, show };

  // biome-ignore lint/correctness/useExhaustiveDependencies: the shape stands for the series
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const make = () => {
      plot.current?.destroy();
      plot.current = new uPlot(
        optionsOf(element.clientWidth, height, latest.current, max),
        dataOf(start, step, latest.current.series),
        element,
      );
    };
    make();
    const resize = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height }));
    resize.observe(element);
    const scheme = window.matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", make);
    return () => {
      resize.disconnect();
      scheme.removeEventListener("change", make);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape]);

  useEffect(() => {
    plot.current?.setData(dataOf(start, step, series));
  }, [start, step, series]);

  const sums = series.map(
    (one) => `${one.label} ${show(one.values.reduce<number>((sum, value) => sum + (value ?? 0), 0))}`,
  );
  return (
    <figure className="min-w-0">
      <figcaption className="flex flex-wrap gap-x-3 text-dim">
        {series.map((one) => (
          <span key={one.label} className="flex items-center gap-1">
            <span className="inline-block h-0.5 w-3" style={{ background: `var(--${one.color})` }} />
            {one.label}
          </span>
        ))}
      </figcaption>
      <div ref={box} role="img" aria-label={`${title}: ${sums.join(", ")} in all`} style={{ minHeight: height }} />
    </figure>
  );
}

const DAY_S = 86_400;

/** Times of a day as 16:00, with the date below the first one of each day. */
function showTicks(_plot: uPlot, ticks: number[], _axis: number, _space: number, step: number): string[] {
  let shown = "";
  return ticks.map((tick) => {
    const at = new Date(tick * 1000);
    const day = at.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
    if (step >= DAY_S) return day;
    const time = `${String(at.getHours()).padStart(2, "0")}:${String(at.getMinutes()).padStart(2, "0")}`;
    const text = day === shown ? time : `${time}\n${day}`;
    shown = day;
    return text;
  });
}

function dataOf(start: number, step: number, series: Series[]): uPlot.AlignedData {
  const n = Math.max(0, ...series.map((one) => one.values.length));
  const times = Array.from({ length: n }, (_, i) => (start + i * step) / 1e6);
  return [times, ...series.map((one) => one.values)];
}

function optionsOf(
  width: number,
  height: number,
  { series, show }: { series: Series[]; show: (value: number) => string },
  max: number,
): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const color = (name: string) => style.getPropertyValue(`--${name}`).trim();
  const axis = {
    stroke: color("dim"),
    grid: { stroke: color("line"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui",
  };
  return {
    width,
    height,
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, y: false },
    scales: { y: { range: (_plot, _low, high) => [0, Math.max(max, high * 1.1)] } },
    axes: [
      { ...axis, size: 38, values: showTicks },
      { ...axis, size: 44, values: (_plot, ticks) => ticks.map(show) },
    ],
    series: [
      {},
      ...series.map((one) => ({
        label: one.label,
        stroke: color(one.color),
        width: 1.5,
        points: { show: false },
        ...(one.fill ? { fill: color(`${one.color}-soft`) } : {}),
      })),
    ],
  };
}
