import { useEffect, useState } from "react";

/** Copies a text; says for a moment that it did. Without the clipboard (plain HTTP) the text is selected instead. */
export function CopyButton({ text, label = "copy" }: { text: string; label?: string }) {
  const [done, setDone] = useState("");
  useEffect(() => {
    if (!done) return;
    const timer = setTimeout(() => setDone(""), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone("copied");
    } catch {
      setDone(copyBySelection(text) ? "copied" : "cannot copy");
    }
  };
  return (
    <button
      type="button"
      onClick={copy}
      className="shrink-0 rounded px-1 text-accent hover:underline"
      aria-label={label === "copy" ? `Copy: ${text.slice(0, 80)}` : undefined}
    >
      <span aria-live="polite">{done || label}</span>
    </button>
  );
}

function copyBySelection(text: string): boolean {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const ok = document.execCommand("copy");
  area.remove();
  return ok;
}

/** A command to copy. */
export function Command({ text }: { text: string }) {
  return (
    <div className="flex items-baseline gap-2 rounded border border-line bg-panel px-2 py-1">
      <code className="min-w-0 flex-1 whitespace-pre-wrap font-mono text-xs [overflow-wrap:anywhere]">{text}</code>
      <CopyButton text={text} />
    </div>
  );
}
