/** What tabs and the shared live worker say to each other. */

export type FromTab = { topics: string[] } | { closed: true };

export interface LogLengths {
  run: string;
  stdout: number;
  stderr: number;
}

/** The last change of a task or job in a frame. */
export interface LiveChange {
  kind: "task" | "job";
  id: string;
  seq: number;
  state: string;
  at: number;
  about: Record<string, unknown>;
}

export type ToTab =
  | { kind: "status"; connected: boolean }
  | { kind: "frame"; topics: string[]; logs: LogLengths[]; changes: LiveChange[] }
  /** Changes may have been missed: fetch everything that is shown again. */
  | { kind: "reset" };

type Change = Omit<LiveChange, "kind" | "about"> & { about?: { job?: string | null } };

export interface Frame {
  tasks?: Change[];
  jobs?: Change[];
  bots?: string[];
  logs?: LogLengths[];
  /** There were further changes than the frame lists. */
  more?: boolean;
}

/** The changes that a frame tells of, oldest first. */
export function changesOf(frame: Frame): LiveChange[] {
  const named = (kind: "task" | "job", changes: Change[] = []) =>
    changes.map((change): LiveChange => ({ ...change, kind, about: change.about ?? {} }));
  return [...named("task", frame.tasks), ...named("job", frame.jobs)].sort((a, b) => a.at - b.at);
}

/** The topics that a frame of the stream says something about. */
export function topicsOf(frame: Frame): string[] {
  const topics = new Set<string>();
  for (const task of frame.tasks ?? []) {
    topics.add("tasks").add(`task:${task.id}`);
    if (task.about?.job) topics.add(`job:${task.about.job}`);
  }
  for (const job of frame.jobs ?? []) topics.add("jobs").add(`job:${job.id}`);
  for (const bot of frame.bots ?? []) topics.add("bots").add(`bot:${bot}`);
  for (const log of frame.logs ?? []) topics.add(`log:${log.run}`);
  return [...topics];
}
