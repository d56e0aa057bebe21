import { useNavigate } from "@tanstack/react-router";
import { callJson } from "../../api/client";
import { useLive } from "../../api/live";
import { StateIcon } from "../../components/StateBadge";
import { showNumber } from "../../lib/format";
import { listOf, type Search } from "../../lib/search";
import { nameOf, TASK_STATES } from "../../lib/states";
import { apiFilters } from "./Filters";

export interface Counts {
  counts: Record<string, number>;
  total: number;
  /** False if there are more tasks than the server counts. */
  complete: boolean;
}

export function fetchCounts(filters: Record<string, string | string[]>, signal?: AbortSignal): Promise<Counts> {
  const { sort: _, ...rest } = filters;
  return callJson<Counts>("get", "/api/v1/tasks/counts", { query: rest, signal });
}

/** The states as switches of the filter, with the number of tasks that the other filters let through. */
export function StateCounts({ search }: { search: Search }) {
  const navigate = useNavigate();
  const chosen = new Set(listOf(search, "state").flatMap((state) => state.split(",")));
  const { state: _, ...filters } = apiFilters(search);
  const counts = useLive<Counts>({
    key: ["task-counts", filters],
    fetch: (signal) => fetchCounts(filters, signal),
    everyMs: 10_000,
    keepPrevious: true,
  });
  const toggle = (state: string) => {
    const next = new Set(chosen);
    if (!next.delete(state)) next.add(state);
    void navigate({ to: "/tasks", search: { ...search, state: [...next] } });
  };
  const found = counts.data;
  return (
    <fieldset className="flex flex-wrap gap-1">
      <legend className="sr-only">States</legend>
      {TASK_STATES.filter((state) => !found || found.counts[state] || chosen.has(state)).map((state) => (
        <button
          key={state}
          type="button"
          aria-pressed={chosen.has(state)}
          onClick={() => toggle(state)}
          className={`inline-flex h-7 items-center gap-1 rounded border px-2 ${chosen.has(state) ? "border-accent bg-accent-soft" : "border-line hover:bg-panel"}`}
        >
          <StateIcon state={state} />
          {nameOf(state)}
          {found && (
            <span className="text-dim">
              {showNumber(found.counts[state] ?? 0)}
              {found.complete ? "" : "+"}
            </span>
          )}
        </button>
      ))}
    </fieldset>
  );
}
