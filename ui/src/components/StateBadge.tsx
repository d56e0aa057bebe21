import { lookOf, nameOf, type Shape, type Tone } from "../lib/states";

const PATHS: Record<Shape, string> = {
  check: "M3 8.5 6.5 12 13 4.5",
  cross: "M4 4l8 8M12 4l-8 8",
  clock: "M8 2.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11M8 5v3.2l2.2 1.4",
  bolt: "M9 2 4 9h4l-1 5 5-7H8z",
  hourglass:
    "M4 2.5h8M4 13.5h8M5 2.5c0 3 6 4.500 6 5.500s-6 2.500-6 5.500M11 2.500c0 3-6 4.500-6 5.500s6 2.500 6 5.500",
  slash: "M8 2.500a5.500 5.500 0 1 1 0 11 5.500 5.500 0 0 1 0-11M4.200 11.800l7.600-7.600",
  ring: "M8 3a5 5 0 1 1 0 10A5 5 0 0 1 8 3",
  dashed: "M8 3a5 5 0 1 1 0 10A5 5 0 0 1 8 3",
  play: "M5 3.500v9l7.500-4.500z",
  bang: "M8 2 14 13.500H2zM8 6v3.500M8 11.300v.4",
  pause: "M5.500 3.500v9M10.500 3.500v9",
  dot: "M8 6.500a1.500 1.500 0 1 1 0 3 1.500 1.500 0 0 1 0-3",
  question: "M5.500 5.500a2.500 2.500 0 1 1 3.500 2.300c-.7.300-1 .8-1 1.700M8 12.200v.4",
};

export const TONE_TEXT: Record<Tone, string> = {
  good: "text-good",
  bad: "text-bad",
  warn: "text-warn",
  run: "text-run",
  wait: "text-wait",
  off: "text-off",
};
export const TONE_SOFT: Record<Tone, string> = {
  good: "bg-good-soft text-good",
  bad: "bg-bad-soft text-bad",
  warn: "bg-warn-soft text-warn",
  run: "bg-run-soft text-run",
  wait: "bg-wait-soft text-wait",
  off: "bg-off-soft text-off",
};

export function StateIcon({ state, className = "" }: { state: string; className?: string }) {
  const { shape, tone } = lookOf(state);
  return (
    <svg
      viewBox="0 0 16 16"
      aria-hidden="true"
      className={`inline-block size-4 shrink-0 ${TONE_TEXT[tone]} ${className}`}
      fill={shape === "play" || shape === "bolt" || shape === "dot" ? "currentColor" : "none"}
      stroke="currentColor"
      strokeWidth="1.8"
      strokeLinecap="round"
      strokeLinejoin="round"
      strokeDasharray={shape === "dashed" ? "2.500 2.700" : undefined}
    >
      <path d={PATHS[shape]} />
    </svg>
  );
}

/** A state as shape, colour and text. In lists that are no tables, a column keeps what follows in line. */
export function StateBadge({
  state,
  large = false,
  column = false,
}: {
  state: string;
  large?: boolean;
  column?: boolean;
}) {
  const { tone, words } = lookOf(state);
  return (
    <span
      title={words}
      className={`inline-flex items-center gap-1 whitespace-nowrap rounded ${column ? "w-28 shrink-0" : ""} ${large ? `px-2 py-1 font-semibold ${TONE_SOFT[tone]}` : TONE_TEXT[tone]}`}
    >
      <StateIcon state={state} />
      {nameOf(state)}
    </span>
  );
}
