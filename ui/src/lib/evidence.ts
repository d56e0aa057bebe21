/** Why a run ended as it did, in sentences. */
import { showDuration } from "./time";

export interface Evidence {
  last_heartbeat?: number | null;
  message?: string;
  signal?: number | null;
  oom?: boolean;
  boot_id?: string;
}

const SIGNALS: Record<number, string> = {
  1: "SIGHUP",
  2: "SIGINT",
  3: "SIGQUIT",
  4: "SIGILL (it executed an illegal instruction)",
  6: "SIGABRT (it ended itself, often after a failed assertion)",
  7: "SIGBUS",
  8: "SIGFPE (an arithmetic error)",
  9: "SIGKILL",
  11: "SIGSEGV (it accessed memory that is not its own)",
  13: "SIGPIPE",
  15: "SIGTERM",
  24: "SIGXCPU",
};

const REASONS: Record<string, string> = {
  start_failed: "The command could not be started: check that the program exists on the bot and can be executed.",
  bot_lost: "The bot stopped answering while it ran this task.",
  bot_restarted: "The bot was restarted while it ran this task.",
  cancelled: "Somebody cancelled it.",
  parent_ended: "The task that started it has ended.",
  parent_failed: "A task that it needs did not succeed.",
  hard_timeout: "It ran longer than its execution timeout.",
  io_timeout: "It wrote nothing for longer than its I/O timeout.",
  no_resource: "No live bot matched it, and it was not to wait for one.",
  expired: "No bot took it before it expired.",
};

export function signalName(signal: number): string {
  return SIGNALS[signal] ?? `signal ${signal}`;
}

export interface Ending {
  state: string;
  reason: string;
  exit_code: number | null;
  evidence?: Evidence | null;
  ended_at?: number | null;
  error?: { type: string; place?: string } | null;
}

/** The class of an exception as people write it. */
export function className(type: string): string {
  return type.replace(/^builtins\./, "");
}

/** What happened, the most telling fact first. Empty for a success. */
export function explainEnd(end: Ending): string[] {
  const { evidence, exit_code: code } = end;
  const said: string[] = [];
  if (evidence?.oom) said.push("It was killed because the machine or its limit ran out of memory.");
  if (evidence?.signal) said.push(`It was ended by ${signalName(evidence.signal)}.`);
  else if (end.error) said.push(raisedWords(end.error));
  else if (code !== null && code !== undefined && code !== 0) said.push(exitCodeWords(code));
  const reason = REASONS[end.reason];
  if (reason) said.push(reason);
  else if (end.reason && end.reason !== "exit_code") said.push(`Reason: ${end.reason.replaceAll("_", " ")}.`);
  if (evidence?.last_heartbeat && end.ended_at) {
    const gap = (end.ended_at - evidence.last_heartbeat) / 1e6;
    said.push(`The bot's last heartbeat was ${showDuration(Math.max(0, gap))} before the run was given up.`);
  }
  return said;
}

function raisedWords({ type, place }: { type: string; place?: string }): string {
  return `It raised ${className(type)}${place ? ` at ${place}` : ""}.`;
}

function exitCodeWords(code: number): string {
  if (code < 0) return `It was ended by ${signalName(-code)}.`;
  if (code === 126) return "It exited with code 126: the file exists but cannot be executed.";
  if (code === 127) return "It exited with code 127: a shell did not find the command.";
  if (code > 128 && code < 160) return `It exited with code ${code}: a shell reports ${signalName(code - 128)} so.`;
  return `It exited with code ${code}.`;
}
