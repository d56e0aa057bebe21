import { useNavigate } from "@tanstack/react-router";
import { useEffect, useMemo, useState } from "react";
import { Button } from "../../../components/Button";
import { CopyButton } from "../../../components/Copy";
import { useKeys } from "../../../components/Keys";
import { commandLine } from "../../../lib/command";
import { plural, showBytes } from "../../../lib/format";
import type { Search } from "../../../lib/search";
import { textOf } from "../../../lib/search";
import { readStored, writeStored } from "../../../lib/stored";
import { downloadLog } from "./download";
import { LogView } from "./LogView";
import type { StreamName } from "./source";
import { useLog } from "./useLog";
import { useLogSearch } from "./useLogSearch";

interface Props {
  task: string;
  run: number;
  runId: string;
  growing: boolean;
  search: Search;
}

const STREAMS: [StreamName, string][] = [
  ["both", "together"],
  ["stdout", "stdout"],
  ["stderr", "stderr"],
];

/** The log of a run with its controls: stream, search, follow, wrap, times, download. */
export function LogPanel({ task, run, runId, growing, search }: Props) {
  const navigate = useNavigate();
  const stream = (STREAMS.find(([name]) => name === textOf(search, "stream"))?.[0] ?? "both") as StreamName;
  const at = /^\d{1,15}$/.test(textOf(search, "at")) ? Number(textOf(search, "at")) : null;
  const [wrap, setWrap] = useStoredFlag("log-wrap", true);
  const [times, setTimes] = useStoredFlag("log-times", false);
  const [follow, setFollow] = useState(growing && at === null);
  const [text, setText] = useState(textOf(search, "find"));
  const [matchCase, setMatchCase] = useState(false);
  const [pattern, setPattern] = useState(text);
  const [position, setPosition] = useState(-1);
  const [jump, setJump] = useState<{ offset: number; seq: number } | null>(null);
  const log = useLog({ task, run, runId, stream, growing, at });
  const found = useLogSearch(log.source, pattern, matchCase);
  const matchOffsets = useMemo(() => new Set(found.matches.map((match) => match.offset)), [found.matches]);

  useEffect(() => {
    const timer = setTimeout(() => setPattern(text), 300);
    return () => clearTimeout(timer);
  }, [text]);

  const setSearch = (change: Search) =>
    void navigate({
      to: "/tasks/$id",
      params: { id: task },
      search: { ...search, ...change },
      replace: true,
      resetScroll: false,
    });
  const jumpTo = (offset: number) => {
    setFollow(false);
    setJump((before) => ({ offset, seq: (before?.seq ?? 0) + 1 }));
  };
  const step = (by: 1 | -1) => {
    const n = found.matches.length;
    if (n === 0) return;
    // The first step goes to the last match: the reason of a failure is usually near the end.
    const next = position < 0 ? n - 1 : (position + by + n) % n;
    setPosition(next);
    jumpTo(found.matches[next]?.offset ?? 0);
  };
  const toggleFollow = () => {
    setFollow(!follow);
    if (!follow) void log.openEnd();
  };
  useKeys({ f: toggleFollow, w: () => setWrap(!wrap), n: () => step(1), N: () => step(-1) });

  const [saving, setSaving] = useState(false);
  const save = async () => {
    setSaving(true);
    try {
      await downloadLog(log.source, `${task}-${run}-${stream}.log`);
    } finally {
      setSaving(false);
    }
  };
  const command = commandLine("myrmidon", "task", "log", task);
  const wroteNothing = !growing && !log.loading && !log.error && log.source.length === 0;
  return (
    <section
      aria-label="Log"
      className={`flex min-w-0 flex-col rounded border border-line ${wroteNothing ? "" : "h-[calc(100vh-190px)] min-h-96"}`}
    >
      <div className="flex flex-wrap items-center gap-x-3 gap-y-1 border-b border-line bg-panel px-2 py-1">
        <fieldset className="flex">
          <legend className="sr-only">Stream</legend>
          {STREAMS.map(([name, label]) => (
            <button
              key={name}
              type="button"
              aria-pressed={stream === name}
              onClick={() => setSearch({ stream: name === "both" ? "" : name, at: "" })}
              className={`border border-line-strong px-2 py-0.5 first:rounded-l last:rounded-r [&+&]:border-l-0 ${stream === name ? "bg-accent-soft text-text" : "bg-bg text-dim"}`}
            >
              {label}
            </button>
          ))}
        </fieldset>
        <input
          data-filter
          type="search"
          aria-label="Search the log for a regular expression"
          placeholder="search (regex)"
          value={text}
          onChange={(event) => {
            setText(event.target.value);
            setPosition(-1);
          }}
          onKeyDown={(event) => {
            if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
            if (event.key === "Escape") event.currentTarget.blur();
          }}
          className="w-40 flex-1 md:max-w-72"
        />
        {pattern && (
          <span className="flex items-center gap-1 text-xs text-dim" aria-live="polite">
            {found.error ||
              `${position >= 0 ? `${position + 1} of ` : ""}${plural(found.matches.length, "line")}${found.full ? " or more" : ""}${found.running ? ` · ${Math.round(found.progress * 100)} %` : ""}`}
            <Button
              kind="quiet"
              aria-label="Previous match"
              disabled={found.matches.length === 0}
              onClick={() => step(-1)}
            >
              ↑
            </Button>
            <Button kind="quiet" aria-label="Next match" disabled={found.matches.length === 0} onClick={() => step(1)}>
              ↓
            </Button>
            <Toggle label="Aa" title="Match case" on={matchCase} onChange={setMatchCase} />
          </span>
        )}
        <span className="flex flex-wrap items-center gap-1 md:ml-auto">
          {growing && <Toggle label="follow" title="Stay at the end (f)" on={follow} onChange={toggleFollow} />}
          <Toggle label="wrap" title="Wrap long lines (w)" on={wrap} onChange={setWrap} />
          {log.source.hasTimes && (
            <Toggle label="times" title="Show when each line was written" on={times} onChange={setTimes} />
          )}
          <Button kind="quiet" onClick={() => void log.openAt(0).then(() => jumpTo(0))}>
            start
          </Button>
          <Button
            kind="quiet"
            onClick={() => void log.openEnd().then(() => jumpTo(Math.max(0, log.source.length - 1)))}
          >
            end
          </Button>
          <Button kind="quiet" disabled={saving} onClick={() => void save()}>
            {saving ? "downloading …" : "download"}
          </Button>
        </span>
      </div>
      <LogView
        key={`${task} ${run} ${stream}`}
        log={log}
        growing={growing}
        wrap={wrap}
        times={times && log.source.hasTimes}
        follow={follow}
        onFollow={setFollow}
        marked={at}
        onMark={(offset) => setSearch({ at: String(offset), run: String(run) })}
        matches={matchOffsets}
        jump={jump}
      />
      <div className="flex flex-wrap items-center gap-x-3 border-t border-line bg-panel px-2 py-0.5 text-xs text-dim">
        <span>
          {showBytes(log.source.length)}
          {log.window.start > 0 || log.window.end < log.source.length
            ? `, shown from ${showBytes(log.window.start)} to ${showBytes(log.window.end)}`
            : ""}
        </span>
        {log.error && log.window.lines.length > 0 && <span className="text-bad">{log.error.message}</span>}
        {growing && <span>{follow ? "following" : "growing"}</span>}
        <span className="ml-auto flex min-w-0 items-center">
          <code className="hidden truncate sm:inline">{command}</code>
          <CopyButton text={command} />
        </span>
      </div>
    </section>
  );
}

function Toggle({
  label,
  title,
  on,
  onChange,
}: {
  label: string;
  title: string;
  on: boolean;
  onChange: (on: boolean) => void;
}) {
  return (
    <button
      type="button"
      title={title}
      aria-pressed={on}
      onClick={() => onChange(!on)}
      className={`h-6 rounded px-1.5 ${on ? "bg-accent-soft text-text" : "text-dim hover:bg-bg"}`}
    >
      {label}
    </button>
  );
}

function useStoredFlag(key: string, initial: boolean) {
  const [value, setValue] = useState(() => readStored(key, initial));
  const set = (next: boolean) => {
    setValue(next);
    writeStored(key, next);
  };
  return [value, set] as const;
}
