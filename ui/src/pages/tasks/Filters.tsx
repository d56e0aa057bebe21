import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { get } from "../../api/client";
import { Button } from "../../components/Button";
import { listOf, type Search, stringifySearch, textOf } from "../../lib/search";
import { TASK_STATES } from "../../lib/states";
import { readStored, writeStored } from "../../lib/stored";
import { parsePeriod, serverNow } from "../../lib/time";

/** The filters of the address in the form of the API. `since` is a period such as 15m; it moves with the time. */
export function apiFilters(search: Search): Record<string, string | string[]> {
  const filters: Record<string, string | string[]> = {};
  const states = listOf(search, "state")
    .flatMap((state) => state.split(","))
    .map((state) => state.toUpperCase())
    .filter((state) => (TASK_STATES as readonly string[]).includes(state));
  if (states.length) filters.state = states;
  const tags = listOf(search, "tag").filter(Boolean);
  if (tags.length) filters.tag = tags;
  for (const key of ["name", "pool", "bot", "user", "group", "start", "end", "sort"]) {
    const value = textOf(search, key);
    if (value) filters[key] = value;
  }
  const period = parsePeriod(textOf(search, "since"));
  if (period !== null) {
    // Rounded, so that the same list has the same key for a while.
    const rounded = Math.floor(serverNow() / 60e6) * 60e6;
    filters.start = String(Math.max(0, rounded - period * 1e6));
  }
  return filters;
}

const FIELDS = [
  ["name", "name"],
  ["pool", "pool"],
  ["bot", "bot"],
  ["user", "user"],
] as const;
const PERIODS = [
  ["", "any time"],
  ["15m", "15 minutes"],
  ["1h", "1 hour"],
  ["24h", "24 hours"],
  ["7d", "7 days"],
] as const;

/** Filters of the task list; they are kept in the address. */
export function Filters({ search }: { search: Search }) {
  const navigate = useNavigate();
  const set = (change: Search) =>
    void navigate({ to: "/tasks", search: { ...search, ...change } as Search, replace: false });
  const addTag = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = event.currentTarget;
    const tag = String(new FormData(form).get("tag") ?? "").trim();
    if (tag) set({ tag: [...new Set([...listOf(search, "tag"), tag])] });
    form.reset();
  };
  return (
    <div className="flex flex-wrap items-center gap-2">
      <form onSubmit={addTag} className="contents">
        <input
          name="tag"
          data-filter
          list="known-tags"
          aria-label="Add a tag to the filter"
          placeholder="tag, as key:value"
          className="w-48"
          autoComplete="off"
        />
        <KnownTags />
      </form>
      {FIELDS.map(([key, label]) => (
        <TextFilter
          key={`${key} ${textOf(search, key)}`}
          label={label}
          value={textOf(search, key)}
          onSet={(value) => set({ [key]: value })}
        />
      ))}
      <select
        aria-label="Created within"
        value={textOf(search, "since")}
        onChange={(event) => set({ since: event.target.value, start: "", end: "" })}
      >
        {PERIODS.map(([value, label]) => (
          <option key={value} value={value}>
            {label}
          </option>
        ))}
      </select>
      {listOf(search, "tag").map((tag) => (
        <Button
          key={tag}
          title="Remove this filter"
          onClick={() => set({ tag: listOf(search, "tag").filter((one) => one !== tag) })}
        >
          {tag} <span aria-hidden="true">×</span>
        </Button>
      ))}
      {Object.keys(search).length > 0 && (
        <Button kind="quiet" onClick={() => void navigate({ to: "/tasks", search: {} })}>
          Clear
        </Button>
      )}
      <SavedViews search={search} />
    </div>
  );
}

function KnownTags() {
  const tags = useQuery({ queryKey: ["tags"], queryFn: () => get("/api/v1/tasks/tags"), staleTime: 60_000 });
  return (
    <datalist id="known-tags">
      {(tags.data?.tags ?? [])
        .slice(0, 50)
        .flatMap(({ key, values }) =>
          values.slice(0, 20).map((value) => <option key={`${key}:${value}`} value={`${key}:${value}`} />),
        )}
    </datalist>
  );
}

function TextFilter({ label, value, onSet }: { label: string; value: string; onSet: (value: string) => void }) {
  const [text, setText] = useState(value);
  return (
    <form
      className="contents"
      onSubmit={(event) => {
        event.preventDefault();
        onSet(text.trim());
      }}
    >
      <input
        aria-label={`Filter by ${label}`}
        placeholder={label}
        value={text}
        onChange={(event) => setText(event.target.value)}
        onBlur={() => text.trim() !== value && onSet(text.trim())}
        className={`w-24 ${value ? "border-accent" : ""}`}
      />
    </form>
  );
}

type Views = Record<string, string>;

/** Filters that this browser keeps under a name. */
function SavedViews({ search }: { search: Search }) {
  const navigate = useNavigate();
  const [views, setViews] = useState<Views>(() => readStored<Views>("views:tasks", {}));
  const [name, setName] = useState("");
  const keep = (next: Views) => {
    setViews(next);
    writeStored("views:tasks", next);
  };
  return (
    <details className="relative">
      <summary className="text-dim">Views</summary>
      <div className="absolute left-0 z-10 mt-1 w-64 space-y-2 rounded border border-line-strong bg-raised p-2 md:left-auto md:right-0">
        {Object.keys(views).length === 0 && <div className="text-dim">Set filters, then keep them here by a name.</div>}
        {Object.entries(views).map(([label, query]) => (
          <div key={label} className="flex justify-between gap-2">
            <a
              href={`/tasks${query}`}
              className="min-w-0 truncate text-accent"
              onClick={(event) => {
                event.preventDefault();
                void navigate({ href: `/tasks${query}` });
              }}
            >
              {label}
            </a>
            <button
              type="button"
              aria-label={`Forget the view ${label}`}
              onClick={() => keep(Object.fromEntries(Object.entries(views).filter(([one]) => one !== label)))}
            >
              ×
            </button>
          </div>
        ))}
        <form
          className="flex gap-1"
          onSubmit={(event) => {
            event.preventDefault();
            if (name.trim()) keep({ ...views, [name.trim()]: stringifySearch(search) });
            setName("");
          }}
        >
          <input
            aria-label="Name of the view"
            placeholder="name"
            value={name}
            onChange={(event) => setName(event.target.value)}
            className="min-w-0 flex-1"
          />
          <Button type="submit">Keep</Button>
        </form>
      </div>
    </details>
  );
}
