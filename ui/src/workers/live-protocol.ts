/** What tabs and the shared live worker say to each other. */

export type FromTab = { topics: string[] } | { closed: true };

export interface LogLengths {
  topic: string;
  run: string;
  stdout: number;
  stderr: number;
  ended: boolean;
}

export type ToTab =
  | { kind: "status"; connected: boolean }
  | { kind: "frame"; topics: string[]; logs: LogLengths[] }
  /** Changes may have been missed: fetch everything that is shown again. */
  | { kind: "reset" };

export interface Frame {
  tasks?: { id: string; job?: string | null }[];
  jobs?: { id: string }[];
  bots?: string[];
  logs?: LogLengths[];
}

/** The topics that a frame of the stream says something about. */
export function topicsOf(frame: Frame): string[] {
  const topics = new Set<string>();
  for (const task of frame.tasks ?? []) {
    topics.add("tasks").add(`task:${task.id}`);
    if (task.job) topics.add(`job:${task.job}`);
  }
  for (const job of frame.jobs ?? []) topics.add("jobs").add(`job:${job.id}`);
  for (const bot of frame.bots ?? []) topics.add("bots").add(`bot:${bot}`);
  for (const log of frame.logs ?? []) topics.add(log.topic);
  return [...topics];
}
