import { useQuery } from "@tanstack/react-query";
import { useRouter } from "@tanstack/react-router";
import { useDeferredValue, useState } from "react";
import { findItems, type Item, PAGE_ITEMS } from "../api/find";
import { Dialog } from "./Dialog";
import { StateIcon } from "./StateBadge";

/** Finds pages, and tasks, jobs and bots by id, name or tag. */
export function Palette({ onClose }: { onClose: () => void }) {
  const router = useRouter();
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const wanted = useDeferredValue(text.trim());
  const found = useQuery({
    queryKey: ["find", wanted],
    queryFn: ({ signal }) => findItems(wanted, signal),
    enabled: wanted.length >= 2,
    staleTime: 10_000,
  });
  const pages = PAGE_ITEMS.filter((item) => item.label.toLowerCase().includes(wanted.toLowerCase()));
  const items: Item[] = [...pages, ...(wanted.length >= 2 ? (found.data ?? []) : [])];
  const current = Math.min(at, items.length - 1);
  const open = (item: Item | undefined) => {
    if (!item) return;
    onClose();
    router.history.push(item.to);
  };
  const onKeyDown = (event: React.KeyboardEvent) => {
    if (event.key === "ArrowDown") setAt(Math.min(items.length - 1, current + 1));
    else if (event.key === "ArrowUp") setAt(Math.max(0, current - 1));
    else if (event.key === "Enter") open(items[current]);
    else return;
    event.preventDefault();
  };
  return (
    <Dialog title="Find" onClose={onClose} hideTitle>
      <input
        autoFocus
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-items"
        aria-activedescendant={items[current] ? `palette-${current}` : undefined}
        aria-label="Find tasks, jobs, bots and pages"
        placeholder="id, name, key:value, or a page"
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          setAt(0);
        }}
        onKeyDown={onKeyDown}
        className="w-full"
      />
      <div id="palette-items" role="listbox" aria-label="What was found" className="mt-2 max-h-80 overflow-y-auto">
        {items.map((item, index) => (
          <div
            key={`${item.kind} ${item.to}`}
            id={`palette-${index}`}
            role="option"
            tabIndex={-1}
            aria-selected={index === current}
            onClick={() => open(item)}
            onMouseMove={() => setAt(index)}
            className={`flex cursor-pointer items-center gap-2 rounded px-2 py-1 ${index === current ? "bg-accent-soft" : ""}`}
          >
            {item.state ? <StateIcon state={item.state} /> : <span className="w-4" />}
            <span className="min-w-0 flex-1 truncate">{item.label}</span>
            <span className="text-xs text-dim">{item.kind}</span>
          </div>
        ))}
      </div>
      <div aria-live="polite" className="mt-1 text-xs text-dim">
        {found.isFetching ? "Searching …" : items.length === 0 ? "Nothing has this id, name or tag." : ""}
        {found.error ? found.error.message : ""}
      </div>
    </Dialog>
  );
}
