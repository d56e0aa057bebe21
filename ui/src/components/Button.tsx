import type { ButtonHTMLAttributes } from "react";

type Kind = "plain" | "primary" | "danger" | "quiet";
const KINDS: Record<Kind, string> = {
  plain: "border-line-strong bg-bg hover:bg-panel",
  primary: "border-accent bg-accent text-on-accent hover:opacity-90",
  danger: "border-bad text-bad bg-bg hover:bg-bad-soft",
  quiet: "border-transparent text-dim hover:text-text hover:bg-panel",
};

export function Button({
  kind = "plain",
  className = "",
  ...rest
}: ButtonHTMLAttributes<HTMLButtonElement> & { kind?: Kind }) {
  return (
    <button
      type="button"
      className={`inline-flex h-7 items-center gap-1 whitespace-nowrap rounded border px-2 disabled:opacity-50 ${KINDS[kind]} ${className}`}
      {...rest}
    />
  );
}
