/** The query part of addresses: every value is a text, repeated keys are lists. Ids never become numbers. */

export type Search = Record<string, string | string[] | undefined>;

export function parseSearch(text: string): Search {
  const search: Record<string, string | string[]> = {};
  for (const [key, value] of new URLSearchParams(text)) {
    const before = search[key];
    search[key] = before === undefined ? value : [before, value].flat();
  }
  return search;
}

export function stringifySearch(search: Record<string, unknown>): string {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(search)) {
    for (const one of [value].flat()) {
      if (one !== undefined && one !== null && one !== "") query.append(key, String(one));
    }
  }
  const text = query.toString();
  return text ? `?${text}` : "";
}

export function listOf(search: Search, key: string): string[] {
  const value = search[key];
  return value === undefined ? [] : [value].flat();
}

export function textOf(search: Search, key: string): string {
  return listOf(search, key)[0] ?? "";
}

/** A path on this server to return to after login; anything else becomes "/". */
export function safeReturn(to: string): string {
  return /^\/(?![/\\])[^\\\u0000-\u001f]{0,511}$/.test(to) ? to : "/";
}
