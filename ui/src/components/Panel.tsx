import type { ReactNode } from "react";

/** A titled part of a page. */
export function Panel({
  title,
  children,
  aside,
  flush = false,
}: {
  title: ReactNode;
  children: ReactNode;
  aside?: ReactNode;
  flush?: boolean;
}) {
  return (
    <section className="min-w-0 rounded border border-line">
      <div className="flex min-h-9 flex-wrap items-center justify-between gap-2 border-b border-line bg-panel px-3 py-1">
        <h2>{title}</h2>
        {aside}
      </div>
      <div className={flush ? "" : "p-3"}>{children}</div>
    </section>
  );
}

/** Names and values, one per row; rows without a value are left out. */
export function Facts({ rows }: { rows: [string, ReactNode][] }) {
  return (
    <dl className="grid grid-cols-[minmax(80px,auto)_1fr] gap-x-3 gap-y-1">
      {rows
        .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
        .map(([name, value]) => (
          <div key={name} className="contents">
            <dt className="text-dim">{name}</dt>
            <dd className="min-w-0 [overflow-wrap:anywhere]">{value}</dd>
          </div>
        ))}
    </dl>
  );
}
