/** What the states of tasks, jobs and bots look like: a tone (colour) and a shape, never the colour alone. */

export type Tone = "good" | "bad" | "warn" | "run" | "wait" | "off";
export type Shape =
  | "check"
  | "cross"
  | "clock"
  | "bolt"
  | "hourglass"
  | "slash"
  | "ring"
  | "dashed"
  | "play"
  | "bang"
  | "pause"
  | "dot"
  | "question";

export interface StateLook {
  tone: Tone;
  shape: Shape;
  /** The state in words. */
  words: string;
}

const LOOKS: Record<string, StateLook> = {
  WAITING: { tone: "off", shape: "dashed", words: "waits for other tasks" },
  READY: { tone: "wait", shape: "ring", words: "waits for a bot" },
  RUNNING: { tone: "run", shape: "play", words: "is running" },
  SUCCEEDED: { tone: "good", shape: "check", words: "succeeded" },
  FAILED: { tone: "bad", shape: "cross", words: "failed" },
  TIMED_OUT: { tone: "bad", shape: "clock", words: "ran out of time" },
  BOT_DIED: { tone: "warn", shape: "bolt", words: "lost its bot" },
  EXPIRED: { tone: "warn", shape: "hourglass", words: "waited too long for a bot" },
  CANCELLED: { tone: "off", shape: "slash", words: "was cancelled before it ran" },
  KILLED: { tone: "off", shape: "slash", words: "was stopped while it ran" },
  NO_RESOURCE: { tone: "warn", shape: "question", words: "found no bot that matches" },
  CLIENT_ERROR: { tone: "bad", shape: "bang", words: "could not be started as requested" },
  PENDING_RETRY: { tone: "wait", shape: "ring", words: "will be tried again" },
  idle: { tone: "good", shape: "ring", words: "is idle" },
  busy: { tone: "run", shape: "play", words: "is busy" },
  draining: { tone: "wait", shape: "pause", words: "finishes its work and takes no more" },
  quarantined: { tone: "warn", shape: "bang", words: "is quarantined" },
  maintenance: { tone: "wait", shape: "pause", words: "is in maintenance" },
  silent: { tone: "warn", shape: "question", words: "has missed heartbeats" },
  dead: { tone: "off", shape: "cross", words: "is gone" },
  alive: { tone: "good", shape: "check", words: "is alive" },
};

export const TASK_STATES = [
  "WAITING",
  "READY",
  "RUNNING",
  "SUCCEEDED",
  "FAILED",
  "TIMED_OUT",
  "BOT_DIED",
  "EXPIRED",
  "CANCELLED",
  "KILLED",
  "NO_RESOURCE",
  "CLIENT_ERROR",
] as const;
export const JOB_STATES = ["RUNNING", "PENDING_RETRY", "SUCCEEDED", "FAILED", "CANCELLED"] as const;
export const BOT_STATES = [
  "alive",
  "idle",
  "busy",
  "silent",
  "draining",
  "quarantined",
  "maintenance",
  "dead",
] as const;

const LIVE = new Set(["WAITING", "READY", "RUNNING", "PENDING_RETRY"]);

export function lookOf(state: string): StateLook {
  return LOOKS[state] ?? { tone: "off", shape: "dot", words: state.toLowerCase().replaceAll("_", " ") };
}

/** Whether a task or job in this state has ended. */
export function isFinal(state: string): boolean {
  return !LIVE.has(state);
}

/** Whether a task ended in a way that somebody should look at. */
export function isFailure(state: string): boolean {
  return isFinal(state) && !["SUCCEEDED", "CANCELLED", "KILLED"].includes(state);
}

/** The label of a state: TIMED_OUT is shown as "timed out". */
export function nameOf(state: string): string {
  return state.toLowerCase().replaceAll("_", " ");
}
