import { Link } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { subscribe, useConnection } from "../../api/live";
import { Button } from "../../components/Button";
import { Command } from "../../components/Copy";
import { Empty } from "../../components/Feedback";
import { StateBadge } from "../../components/StateBadge";
import { Time } from "../../components/Time";
import { plural } from "../../lib/format";
import type { LiveChange } from "../../workers/live-protocol";

const MAX_EVENTS = 300;
const TOPICS: Record<string, string[]> = { "": ["tasks", "jobs"], task: ["tasks"], job: ["jobs"] };

/** What an event tells besides its state, such as "run 7c07, bot build-03". */
function aboutText(about: Record<string, unknown>): string {
  return Object.entries(about)
    .filter(([, value]) => value !== null && value !== "")
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${typeof value === "object" ? JSON.stringify(value) : value}`)
    .join(", ");
}

/** Changes of tasks and jobs as they happen, from the stream that all tabs of this browser share. */
export function Events() {
  const [events, setEvents] = useState<LiveChange[]>([]);
  const [kind, setKind] = useState("");
  const [text, setText] = useState("");
  const [paused, setPaused] = useState(false);
  const live = useConnection() === "live";
  useEffect(() => {
    if (paused) return;
    return subscribe(TOPICS[kind] ?? [], (_topics, _logs, changes) => {
      const added = changes.filter((change) => !kind || change.kind === kind).reverse();
      if (added.length > 0) setEvents((before) => [...added, ...before].slice(0, MAX_EVENTS));
    });
  }, [kind, paused]);
  const wanted = text.toLowerCase();
  const shown = events.filter((event) => !wanted || JSON.stringify(event).toLowerCase().includes(wanted));
  return (
    <div className="space-y-3">
      <div className="flex flex-wrap items-center gap-2">
        <input
          data-filter
          aria-label="Filter the events"
          placeholder="id, state or any text"
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
        <select aria-label="Kind" value={kind} onChange={(event) => setKind(event.target.value)}>
          <option value="">tasks and jobs</option>
          <option value="task">tasks</option>
          <option value="job">jobs</option>
        </select>
        <Button aria-pressed={paused} onClick={() => setPaused(!paused)}>
          {paused ? "Continue" : "Pause"}
        </Button>
        <Button kind="quiet" onClick={() => setEvents([])}>
          Clear
        </Button>
        <span className="text-dim">
          {live ? `${plural(events.length, "event")} since this view was opened` : "There is no stream; reconnecting …"}
        </span>
      </div>
      {shown.length === 0 ? (
        <Empty title={events.length === 0 ? "Waiting for events" : "No event matches"}>
          They appear here as tasks and jobs change.
        </Empty>
      ) : (
        <ol className="rounded border border-line">
          {shown.map((event) => (
            <li
              key={`${event.kind} ${event.id} ${event.seq}`}
              className="flex flex-wrap items-center gap-x-3 border-b border-line px-3 py-1 last:border-0"
            >
              <span className="w-20 text-dim">
                <Time at={event.at} />
              </span>
              <StateBadge state={event.state} column />
              <Link
                to={event.kind === "job" ? "/jobs/$id" : "/tasks/$id"}
                params={{ id: event.id }}
                className="font-mono text-xs leading-5 text-accent"
              >
                {event.kind} {event.id}
              </Link>
              <code className="min-w-0 basis-full text-xs leading-5 text-dim [overflow-wrap:anywhere] sm:flex-1 sm:basis-0">
                {aboutText(event.about)}
              </code>
            </li>
          ))}
        </ol>
      )}
      <p className="text-dim">
        At most twice a second, with the last change of each task and job. This streams every event:
      </p>
      <Command text="curl -sSN -H &quot;Authorization: Bearer $MYRMIDON_TOKEN&quot; SERVER/api/v1/events" />
    </div>
  );
}
