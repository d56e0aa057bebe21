import { useVirtualizer } from "@tanstack/react-virtual";
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "react";
import { Empty, Failed } from "../../../components/Feedback";
import { useKeys } from "../../../components/Keys";
import { type Line, STDERR, spansOfLine } from "../../../lib/log";
import { showExact } from "../../../lib/time";
import type { Log } from "./useLog";

const LINE_PX = 18;
const NEAR_PX = 1200;

interface Props {
  log: Log;
  growing: boolean;
  wrap: boolean;
  times: boolean;
  follow: boolean;
  onFollow: (follow: boolean) => void;
  /** The line that the address points to. */
  marked: number | null;
  onMark: (offset: number) => void;
  matches: ReadonlySet<number>;
  /** Scroll to this offset when `seq` changes. */
  jump: { offset: number; seq: number } | null;
}

/** The lines of a log, of which only the visible ones are in the page. */
export function LogView({ log, growing, wrap, times, follow, onFollow, marked, onMark, matches, jump }: Props) {
  const { window, source, version } = log;
  const box = useRef<HTMLDivElement>(null);
  const [ready, setReady] = useState(false);
  const virtual = useVirtualizer({
    count: window.lines.length,
    getScrollElement: () => box.current,
    estimateSize: () => LINE_PX,
    overscan: 30,
  });
  const anchor = useRef({ seen: -1, scrolledTo: -1 });

  const show = useCallback(
    async (offset: number) => {
      if (window.indexOf(offset) < 0) await log.openAt(offset);
      const index = window.indexOf(offset);
      if (index >= 0) virtual.scrollToIndex(index, { align: "center" });
    },
    [log.openAt, window, virtual],
  );

  // Lines that came in before the shown ones must not move what is read.
  useLayoutEffect(() => {
    if (version === anchor.current.seen || !box.current) return;
    anchor.current.seen = version;
    if (log.shift) box.current.scrollTop += log.shift * LINE_PX;
    if (follow && window.lines.length > 0) {
      virtual.scrollToIndex(window.lines.length - 1, { align: "end" });
    }
  }, [version, log.shift, follow, window, virtual]);

  // The first view: the line of the address, else the end.
  useEffect(() => {
    if (ready || window.lines.length === 0 || log.loading) return;
    setReady(true);
    if (marked !== null) void show(marked);
    else virtual.scrollToIndex(window.lines.length - 1, { align: "end" });
  }, [ready, window, log.loading, marked, show, virtual]);

  useEffect(() => {
    if (jump && anchor.current.scrolledTo !== jump.seq) {
      anchor.current.scrolledTo = jump.seq;
      void show(jump.offset);
    }
  }, [jump, show]);

  const onScroll = () => {
    const element = box.current;
    if (!element || !ready) return;
    const below = element.scrollHeight - element.scrollTop - element.clientHeight;
    const atEnd = below < 4 && window.end >= source.length;
    if (follow && below > 40) onFollow(false);
    if (!follow && atEnd && growing) onFollow(true);
    if (log.loading) return;
    if (element.scrollTop < NEAR_PX && window.start > 0) void log.loadBefore();
    else if (below < NEAR_PX && window.end < source.length) void log.loadAfter();
  };

  const scrollBy = (lines: number) => box.current?.scrollBy({ top: lines * LINE_PX });
  useKeys({
    j: () => scrollBy(3),
    k: () => scrollBy(-3),
  });

  if (log.error && window.lines.length === 0) {
    return <Failed error={log.error} what="This log" retry={() => void log.openEnd()} />;
  }
  if (window.lines.length === 0) return <NoLines loading={log.loading} growing={growing} stream={source.name} />;
  const numberOf = (index: number) => (window.firstNumber === null ? "#" : String(window.firstNumber + index));
  const width = String((window.firstNumber ?? 0) + window.lines.length).length;
  return (
    <div
      ref={box}
      tabIndex={0}
      role="log"
      aria-label={`Log, ${source.name}`}
      aria-live="off"
      onScroll={onScroll}
      className={`min-h-0 flex-1 overflow-auto bg-bg ${wrap ? "log-wrap" : ""}`}
    >
      <div
        className="relative min-w-full"
        style={{ height: virtual.getTotalSize(), width: wrap ? "100%" : "max-content" }}
      >
        {virtual.getVirtualItems().map((item) => {
          const line = window.lines[item.index];
          if (!line) return null;
          return (
            <div
              key={item.key}
              data-index={item.index}
              ref={wrap ? virtual.measureElement : undefined}
              className={`absolute left-0 top-0 flex min-w-full hover:bg-panel ${line.offset === marked ? "bg-wait-soft" : matches.has(line.offset) ? "bg-run-soft" : ""}`}
              style={{ transform: `translateY(${item.start}px)`, ...(wrap ? { width: "100%" } : {}) }}
            >
              <button
                type="button"
                tabIndex={-1}
                title="Link to this line"
                aria-label={`${numberOf(item.index)}: link to the line at byte ${line.offset}`}
                onClick={() => onMark(line.offset)}
                className="log-line sticky left-0 shrink-0 select-none bg-bg px-2 text-right text-dim hover:text-accent"
                style={{ minWidth: `${width + 3}ch` }}
              >
                {numberOf(item.index)}
              </button>
              {times && <LineTime at={source.timeOf(line.offset)} />}
              <LineText line={line} tell={source.name === "both"} />
            </div>
          );
        })}
      </div>
    </div>
  );
}

function LineText({ line, tell }: { line: Line; tell: boolean }) {
  const isErr = tell && line.stream === STDERR;
  return (
    <span
      className={`log-line min-w-0 flex-1 border-l-2 pl-2 pr-4 ${isErr ? "border-warn" : "border-transparent"}`}
      title={isErr ? "stderr" : undefined}
    >
      {spansOfLine(line).map((span, i) => (
        <span key={i} className={span.classes || undefined}>
          {span.text}
        </span>
      ))}
      {line.bytes.length === 0 && " "}
      {line.continued && (
        <span className="text-dim" title="The line goes on below: it is longer than 4,096 bytes">
          ⏎
        </span>
      )}
    </span>
  );
}

function LineTime({ at }: { at: number | null }) {
  if (at === null) return <span className="log-line w-[13ch] shrink-0 text-dim"> </span>;
  const date = new Date(at / 1000);
  return (
    <span className="log-line w-[13ch] shrink-0 select-none text-dim" title={showExact(at)}>
      {date.toLocaleTimeString(undefined, { hour12: false })}.{String(date.getMilliseconds()).padStart(3, "0")}
    </span>
  );
}

function NoLines({ loading, growing, stream }: { loading: boolean; growing: boolean; stream: string }) {
  if (loading) {
    return (
      <div role="status" className="p-4 text-dim">
        Loading the log …
      </div>
    );
  }
  const where = stream === "both" ? "" : ` to ${stream}`;
  return growing ? (
    <Empty title={`Nothing was written${where} yet`}>Output appears here as it is written.</Empty>
  ) : (
    <Empty title={`It wrote nothing${where}`} />
  );
}
