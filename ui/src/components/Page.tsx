import { type ReactNode, useEffect } from "react";

/** The frame of a page: its title (also the browser tab's), what is above it, and its actions. */
export function Page({
  title,
  heading,
  crumbs,
  actions,
  children,
}: {
  title: string;
  heading?: ReactNode;
  crumbs?: ReactNode;
  actions?: ReactNode;
  children: ReactNode;
}) {
  useEffect(() => {
    document.title = `${title} · Myrmidon`;
  }, [title]);
  return (
    <div className="mx-auto max-w-[1680px] space-y-3 px-3 py-3 md:px-4">
      {crumbs && (
        <nav aria-label="Where this is" className="text-dim">
          {crumbs}
        </nav>
      )}
      <div className="flex flex-wrap items-center gap-x-4 gap-y-2">
        <h1 className="min-w-0 [overflow-wrap:anywhere]">{heading ?? title}</h1>
        {actions && <div className="flex flex-wrap items-center gap-2 md:ml-auto">{actions}</div>}
      </div>
      {children}
    </div>
  );
}
