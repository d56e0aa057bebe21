import { Link } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { Button } from "../../components/Button";
import { Command } from "../../components/Copy";
import { Empty } from "../../components/Feedback";
import { StateBadge } from "../../components/StateBadge";
import { Time } from "../../components/Time";
import { plural } from "../../lib/format";

interface LiveEvent {
  position: number;
  kind: string;
  id: string;
  state: string;
  at: number;
  about: Record<string, unknown>;
}

const MAX_EVENTS = 300;

/** Events as they happen. This view alone opens a stream of its own, because it shows the events themselves. */
export function Events() {
  const [events, setEvents] = useState<LiveEvent[]>([]);
  const [kind, setKind] = useState("");
  const [text, setText] = useState("");
  const [paused, setPaused] = useState(false);
  const [broken, setBroken] = useState(false);
  useEffect(() => {
    if (paused) return;
    const source = new EventSource(`/api/v1/events${kind ? `?kind=${kind}` : ""}`);
    const add = (message: MessageEvent<string>) => {
      const event = JSON.parse(message.data) as LiveEvent;
      setEvents((before) => [event, ...before].slice(0, MAX_EVENTS));
    };
    source.addEventListener("task", add);
    source.addEventListener("job", add);
    source.onopen = () => setBroken(false);
    source.onerror = () => setBroken(true);
    return () => source.close();
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
          <option value="task-failed">failed tasks</option>
        </select>
        <Button aria-pressed={paused} onClick={() => setPaused(!paused)}>
          {paused ? "Continue" : "Pause"}
        </Button>
        <Button kind="quiet" onClick={() => setEvents([])}>
          Clear
        </Button>
        <span className="text-dim">
          {broken ? "The stream broke; reconnecting …" : `${plural(events.length, "event")} since this view was opened`}
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
              key={event.position}
              className="flex flex-wrap items-start gap-x-3 border-b border-line px-3 py-1 last:border-0"
            >
              <span className="w-20 text-dim">
                <Time at={event.at} />
              </span>
              <StateBadge state={event.state} />
              <Link
                to={event.kind === "job" ? "/jobs/$id" : "/tasks/$id"}
                params={{ id: event.id }}
                className="font-mono text-xs leading-5 text-accent"
              >
                {event.kind} {event.id}
              </Link>
              <code className="min-w-0 flex-1 text-xs leading-5 text-dim [overflow-wrap:anywhere]">
                {JSON.stringify(event.about)}
              </code>
            </li>
          ))}
        </ol>
      )}
      <Command text="curl -sSN -H &quot;Authorization: Bearer $MYRMIDON_TOKEN&quot; SERVER/api/v1/events" />
    </div>
  );
}
