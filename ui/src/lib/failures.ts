/** Failures of a job, grouped by what they say. */
import { stripAnsi } from "./ansi";

export interface FailedTask {
  label: string;
  task_id: string;
  state: string;
  reason: string;
  exit_code: number | null;
  bot_id: string | null;
  /** The end of its log; empty if there is none. */
  tail: string;
}

export interface FailureGroup {
  message: string;
  state: string;
  tasks: FailedTask[];
}

const ERROR_LINE =
  /\b(error|exception|failed|failure|fatal|panic|assert\w*|traceback|not found|denied|cannot|killed)\b/i;

/** An error with what is wrong after a colon, not only its name. */
const ERROR_WITH_TEXT = /(error|exception|failure|fatal|panic\w*)\b[^:]*: \S/i;

/** The line of a log's end that says most: the last error with a text, else the last one that looks like an error. */
export function tellingLine(tail: string): string {
  const lines = tail
    .split("\n")
    .map((line) =>
      stripAnsi(line)
        .trim()
        .replace(/^E {2,}/, ""),
    )
    .filter(Boolean);
  return (
    lines.findLast((line) => ERROR_WITH_TEXT.test(line)) ??
    lines.findLast((line) => ERROR_LINE.test(line)) ??
    lines.at(-1) ??
    ""
  );
}

/** Numbers, ids and quoted texts differ between failures that are the same. */
function normalised(line: string): string {
  return line
    .replace(/0x[0-9a-f]+|\b[0-9a-f]{8,}\b/gi, "#")
    .replace(/\d+(\.\d+)?/g, "#")
    .replace(/(["'`])(?:(?!\1).){1,80}\1/g, "#")
    .slice(0, 200);
}

export function groupFailures(tasks: readonly FailedTask[]): FailureGroup[] {
  const groups = new Map<string, FailureGroup>();
  for (const task of tasks) {
    const line = tellingLine(task.tail);
    const key = `${task.state} ${task.reason} ${task.exit_code} ${normalised(line)}`;
    const group = groups.get(key);
    if (group) group.tasks.push(task);
    else groups.set(key, { message: line || plainMessage(task), state: task.state, tasks: [task] });
  }
  return [...groups.values()].sort((a, b) => b.tasks.length - a.tasks.length);
}

function plainMessage(task: FailedTask): string {
  if (task.exit_code) return `exit code ${task.exit_code}, no output`;
  return task.reason ? task.reason.replaceAll("_", " ") : task.state.toLowerCase().replaceAll("_", " ");
}
