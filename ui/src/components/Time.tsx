import { useEffect, useState } from "react";
import { serverNow, showDuration, showExact, showRelative } from "../lib/time";

/** Renders again as time passes: every second at first, then less often. */
export function useNow(everyMs: number): number {
  const [now, setNow] = useState(serverNow);
  useEffect(() => {
    const timer = setInterval(() => setNow(serverNow()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

/** A time relative to now, with the exact one on hover. */
export function Time({ at }: { at: number | null | undefined }) {
  const [age] = useState(() => Math.abs(serverNow() - (at ?? 0)) / 1e6);
  const now = useNow(age < 120 ? 1000 : 30_000);
  if (at === null || at === undefined) return <span className="text-dim">–</span>;
  return (
    <time dateTime={new Date(at / 1000).toISOString()} title={showExact(at)} className="whitespace-nowrap">
      {showRelative(at, now)}
    </time>
  );
}

/** The time between two moments; counts on while there is no end. */
export function Elapsed({ from, to }: { from: number | null | undefined; to?: number | null | undefined }) {
  if (from === null || from === undefined) return <span className="text-dim">–</span>;
  if (to !== null && to !== undefined)
    return <span className="whitespace-nowrap">{showDuration((to - from) / 1e6)}</span>;
  return <Counting from={from} />;
}

function Counting({ from }: { from: number }) {
  const now = useNow(1000);
  return <span className="whitespace-nowrap">{showDuration(Math.max(0, Math.floor((now - from) / 1e6)))}</span>;
}
