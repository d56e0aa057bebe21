/** How far a run has come, from 0 to 1, as its function tells. */
export function Progress({ value }: { value: number }) {
  const percent = Math.round(value * 100);
  return (
    <span className="inline-flex items-center gap-1 whitespace-nowrap text-xs text-dim">
      <progress className="h-1.5 w-16" max={100} value={percent} aria-label="Progress" />
      {percent} %
    </span>
  );
}
