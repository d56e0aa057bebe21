import { Link } from "@tanstack/react-router";
import { useState } from "react";

/** Tags as links to the tasks that have them; the rest on request. */
export function Tags({
  tags,
  max = 6,
  to = "/tasks",
  oneLine = false,
}: {
  tags: string[];
  max?: number;
  to?: "/tasks" | "/jobs";
  oneLine?: boolean;
}) {
  const [all, setAll] = useState(false);
  const shown = all ? tags : tags.slice(0, max);
  return (
    <span className={`inline-flex min-w-0 gap-1 ${oneLine && !all ? "" : "flex-wrap"}`}>
      {shown.map((tag) => (
        <Link
          key={tag}
          to={to}
          search={{ tag: [tag] }}
          className="max-w-48 truncate whitespace-nowrap rounded bg-off-soft px-1 text-xs leading-5 text-dim"
          title={tag}
        >
          {tag}
        </Link>
      ))}
      {tags.length > shown.length && (
        <button type="button" className="whitespace-nowrap text-xs text-accent" onClick={() => setAll(true)}>
          {tags.length - shown.length} more
        </button>
      )}
    </span>
  );
}
