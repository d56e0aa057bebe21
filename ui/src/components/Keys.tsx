import { useEffect, useRef } from "react";
import { Dialog } from "./Dialog";

/** A handler that returns false leaves the key to the browser. */
type Handlers = Record<string, () => unknown>;

let pending = "";
let pendingTimer: ReturnType<typeof setTimeout> | undefined;
const stack: { current: Handlers }[] = [];

function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName);
}

function onKey(event: KeyboardEvent): void {
  const palette = event.key === "k" && (event.ctrlKey || event.metaKey);
  if (!palette && (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target))) return;
  if (!palette && document.querySelector("dialog[open]")) return;
  // Enter belongs to a link or button that has the focus.
  if (event.key === "Enter" && event.target instanceof HTMLElement && event.target !== document.body) return;
  const name = palette ? "ctrl+k" : pending ? `${pending} ${event.key}` : event.key;
  clearTimeout(pendingTimer);
  pending = "";
  for (let i = stack.length - 1; i >= 0; i--) {
    const handler = stack[i]?.current[name];
    if (handler && handler() !== false) {
      event.preventDefault();
      return;
    }
  }
  if (name === "g") {
    pending = "g";
    pendingTimer = setTimeout(() => {
      pending = "";
    }, 1500);
  }
}

/** Keys that work while this component is shown; the one shown last comes first. */
export function useKeys(handlers: Handlers): void {
  const ref = useRef(handlers);
  ref.current = handlers;
  useEffect(() => {
    if (stack.length === 0) window.addEventListener("keydown", onKey);
    stack.push(ref);
    return () => {
      stack.splice(stack.indexOf(ref), 1);
      if (stack.length === 0) window.removeEventListener("keydown", onKey);
    };
  }, []);
}

const KEYS: [string, string][] = [
  ["?", "this list"],
  ["Ctrl K", "find tasks, jobs, bots and pages"],
  ["/", "go to the page's filter, or find"],
  ["g h", "Home"],
  ["g t", "Tasks"],
  ["g j", "Jobs"],
  ["g b", "Bots"],
  ["g q", "Queues"],
  ["g f", "Functions"],
  ["g v", "Values"],
  ["g s", "System"],
  ["j, k", "next and previous row"],
  ["Enter", "open the row"],
  ["f", "in a log: follow its end"],
  ["w", "in a log: wrap long lines"],
  ["n, N", "in a log: next and previous match"],
  ["Escape", "close what is open"],
];

export function KeysHelp({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keys" onClose={onClose}>
      <dl className="grid grid-cols-[auto_1fr] gap-x-4 gap-y-1">
        {KEYS.map(([keys, what]) => (
          <div key={keys} className="contents">
            <dt>
              <kbd className="rounded border border-line-strong bg-panel px-1 font-mono text-xs">{keys}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
