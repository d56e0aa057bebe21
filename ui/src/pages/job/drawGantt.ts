/** Draws the visible rows of the Gantt view on a canvas. */
import { axisTicks, type Range, type Row } from "../../lib/gantt";
import { isFinal, lookOf, nameOf } from "../../lib/states";
import { showDuration } from "../../lib/time";

export const ROW_PX = 20;
export const AXIS_PX = 24;

/** The width of the labels: less on a narrow screen. */
export function labelWidth(width: number): number {
  return width < 480 ? 96 : 140;
}

const BAR_PX = 12;

export interface Drawing {
  rows: Row[];
  range: Range;
  origin: number;
  now: number;
  top: number;
  width: number;
  height: number;
}

export function drawGantt(canvas: HTMLCanvasElement, drawing: Drawing): void {
  const context = canvas.getContext("2d");
  if (!context) return;
  const { width, height, rows, range, top } = drawing;
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const style = getComputedStyle(document.documentElement);
  const color = (name: string) => style.getPropertyValue(`--${name}`).trim();
  const labels = labelWidth(width);
  const plot = Math.max(1, width - labels - 8);
  const x = (at: number) => labels + ((at - range.from) / (range.to - range.from)) * plot;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = color("bg");
  context.fillRect(0, 0, width, height);
  context.font = "12px ui-sans-serif, system-ui, sans-serif";
  context.textBaseline = "middle";
  drawAxis(context, drawing, x, color);

  const first = Math.max(0, Math.floor(top / ROW_PX));
  const last = Math.min(rows.length, Math.ceil((top + height - AXIS_PX) / ROW_PX) + 1);
  context.save();
  context.beginPath();
  context.rect(0, AXIS_PX, width, height - AXIS_PX);
  context.clip();
  for (let i = first; i < last; i++) {
    const row = rows[i];
    if (!row) continue;
    const y = AXIS_PX + i * ROW_PX - top;
    drawBars(context, row, y, x, drawing, color);
    context.fillStyle = color("bg");
    context.fillRect(0, y, labels, ROW_PX);
    context.fillStyle = color(row.critical ? "text" : "dim");
    context.fillText(shortened(context, row.label, labels - 12), 6, y + ROW_PX / 2);
  }
  context.restore();
}

function drawAxis(
  context: CanvasRenderingContext2D,
  drawing: Drawing,
  x: (at: number) => number,
  color: (name: string) => string,
): void {
  const { range, origin, width, height } = drawing;
  context.strokeStyle = color("line");
  context.fillStyle = color("dim");
  for (const tick of axisTicks(range, origin, Math.max(2, (width - labelWidth(width)) / 90))) {
    const at = Math.round(x(origin + tick)) + 0.5;
    context.beginPath();
    context.moveTo(at, AXIS_PX - 4);
    context.lineTo(at, height);
    context.stroke();
    const text = showDuration(tick / 1e6);
    if (at + 3 + context.measureText(text).width <= width) context.fillText(text, at + 3, AXIS_PX / 2);
  }
  context.beginPath();
  context.moveTo(0, AXIS_PX - 0.5);
  context.lineTo(width, AXIS_PX - 0.5);
  context.stroke();
}

function drawBars(
  context: CanvasRenderingContext2D,
  row: Row,
  y: number,
  x: (at: number) => number,
  { now, range }: Drawing,
  color: (name: string) => string,
): void {
  const topOfBar = y + (ROW_PX - BAR_PX) / 2;
  if (!row.ready_at && !row.started_at) {
    context.fillStyle = color("dim");
    context.fillText(
      isFinal(row.state) ? nameOf(row.state) : "waits for other tasks",
      x(range.from) + 4,
      y + ROW_PX / 2,
    );
  }
  const started = row.started_at;
  const end = row.completed_at ?? now;
  if (row.ready_at !== null && row.ready_at !== undefined) {
    const from = x(row.ready_at);
    const to = x(started ?? end);
    context.strokeStyle = color("dim");
    if (to - from >= 1) context.strokeRect(from + 0.5, topOfBar + 2.5, Math.max(0, to - from - 1), BAR_PX - 5);
  }
  if (started !== null && started !== undefined) {
    const from = x(started);
    const length = Math.max(2, x(end) - from);
    context.fillStyle = color(lookOf(row.state).tone);
    context.fillRect(from, topOfBar, length, BAR_PX);
    if (row.critical) {
      context.fillStyle = color("text");
      context.fillRect(from, topOfBar + BAR_PX, length, 2);
    }
  }
}

function shortened(context: CanvasRenderingContext2D, text: string, max: number): string {
  if (context.measureText(text).width <= max) return text;
  let end = Math.min(text.length, 40);
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > max) end--;
  return `${text.slice(0, end)}…`;
}
