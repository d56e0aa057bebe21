import { type RefObject, useEffect, useRef } from "react";

/** For a row of links that is wider than a narrow screen: scrolls to the current one whenever the place changes. */
export function useCurrentShown<T extends HTMLElement>(place: string): RefObject<T | null> {
  const row = useRef<T>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another place has another current link
  useEffect(() => {
    row.current?.querySelector("[aria-current=page]")?.scrollIntoView({ inline: "nearest", block: "nearest" });
  }, [place]);
  return row;
}
