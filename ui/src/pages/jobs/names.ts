import { ApiError, callJson, get } from "../../api/client";
import type { JobRun } from "../../components/RunBars";

export interface JobName {
  name: string;
  num_jobs: number;
  runs: JobRun[];
}

/** Jobs by name with their last runs; from the newest jobs if the server has no such call. */
export async function fetchNames(signal: AbortSignal): Promise<JobName[]> {
  try {
    return (await callJson<{ names: JobName[] }>("get", "/api/v1/job-names", { query: { limit: 100 }, signal })).names;
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
    const { jobs } = await get("/api/v1/jobs", { query: { limit: 500 }, signal });
    const names = new Map<string, JobRun[]>();
    for (const job of jobs) {
      const runs = names.get(job.name) ?? [];
      if (runs.length < 30) runs.push({ ...job, ended_at: job.ended_at ?? null });
      names.set(job.name, runs);
    }
    return [...names].map(([name, runs]) => ({ name, num_jobs: runs.length, runs }));
  }
}

export interface FlakyLabel {
  label: string;
  num_runs: number;
  num_failed: number;
  bots: { bot_id: string; num_runs: number; num_failed: number }[];
}

export interface Flaky {
  num_jobs: number;
  labels: FlakyLabel[];
}

/** "failed 3 of 50, 3 of 4 on bot-7": the bot is named if it has most of the failures. */
export function flakyWords(label: FlakyLabel): string {
  const words = `failed ${label.num_failed} of ${label.num_runs}`;
  const worst = [...label.bots].sort((a, b) => b.num_failed - a.num_failed)[0];
  if (!worst || label.num_failed < 2 || worst.num_failed * 2 <= label.num_failed || worst.num_runs === label.num_runs)
    return words;
  return `${words}, ${worst.num_failed} of ${worst.num_runs} on ${worst.bot_id}`;
}

/** How the last ten finished runs compare with those before: durations as a factor; null if there are too few. */
export function trendOf(runs: JobRun[]): number | null {
  const times = runs
    .filter((run) => run.state === "SUCCEEDED" && run.ended_at)
    .map((run) => (run.ended_at ?? 0) - run.created_at);
  if (times.length < 6) return null;
  const half = Math.floor(times.length / 2);
  const median = (list: number[]) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)] ?? 0;
  const before = median(times.slice(half));
  return before > 0 ? median(times.slice(0, half)) / before : null;
}
