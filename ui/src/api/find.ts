/** What the palette finds. */
import { ApiError, callJson, get } from "./client";

export interface Item {
  kind: string;
  label: string;
  to: string;
  state?: string;
}

export const PAGE_ITEMS: Item[] = [
  { kind: "page", label: "Home", to: "/" },
  { kind: "page", label: "Tasks", to: "/tasks" },
  { kind: "page", label: "Failed tasks", to: "/tasks?state=FAILED" },
  { kind: "page", label: "Running tasks", to: "/tasks?state=RUNNING" },
  { kind: "page", label: "Waiting tasks", to: "/tasks?state=READY" },
  { kind: "page", label: "Jobs", to: "/jobs" },
  { kind: "page", label: "Bots", to: "/bots" },
  { kind: "page", label: "Dead bots", to: "/bots?state=dead" },
  { kind: "page", label: "Queues", to: "/queues" },
  { kind: "page", label: "Functions", to: "/functions" },
  { kind: "page", label: "Values", to: "/values" },
  { kind: "page", label: "System", to: "/system" },
];

interface Found {
  tasks: { id: string; name: string; state: string }[];
  jobs: { id: string; name: string; state: string }[];
  bots: string[];
  tags: string[];
}

export async function findItems(text: string, signal: AbortSignal): Promise<Item[]> {
  let found: Found;
  try {
    found = await callJson<Found>("get", "/api/v1/search", { query: { q: text, limit: 8 }, signal });
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
    found = await findByLists(text, signal);
  }
  return [
    ...found.tasks.map((one) => ({
      kind: "task",
      label: `${one.name} ${one.id}`,
      to: pathTo("/tasks", one.id),
      state: one.state,
    })),
    ...found.jobs.map((one) => ({
      kind: "job",
      label: `${one.name} ${one.id}`,
      to: pathTo("/jobs", one.id),
      state: one.state,
    })),
    ...found.bots.map((id) => ({ kind: "bot", label: id, to: pathTo("/bots", id) })),
    ...found.tags.map((tag) => ({ kind: "tag", label: tag, to: `/tasks?tag=${encodeURIComponent(tag)}` })),
  ];
}

export function pathTo(base: "/tasks" | "/jobs" | "/bots", id: string): string {
  return `${base}/${encodeURIComponent(id)}`;
}

/** The same from the lists, for a server without a search call. */
async function findByLists(text: string, signal: AbortSignal): Promise<Found> {
  const ignore = () => null;
  const [task, job, bot, named, jobs] = await Promise.all([
    get("/api/v1/tasks/{id}", { path: { id: text }, signal }).catch(ignore),
    get("/api/v1/jobs/{id}", { path: { id: text }, signal }).catch(ignore),
    get("/api/v1/bots/{id}", { path: { id: text }, signal }).catch(ignore),
    get("/api/v1/tasks", { query: { name: text, limit: 5 }, signal }).catch(ignore),
    get("/api/v1/jobs", { query: { name: text, limit: 5 }, signal }).catch(ignore),
  ]);
  return {
    tasks: [
      ...(task ? [{ id: task.task_id, name: task.request.name, state: task.result.state }] : []),
      ...(named?.tasks ?? []).map((one) => ({ id: one.task_id, name: one.name, state: one.state })),
    ],
    jobs: [
      ...(job ? [{ id: job.job_id, name: job.name, state: job.state }] : []),
      ...(jobs?.jobs ?? []).map((one) => ({ id: one.job_id, name: one.name, state: one.state })),
    ],
    bots: bot ? [bot.bot_id] : [],
    tags: text.includes(":") ? [text] : [],
  };
}
