/** Small settings of this browser, such as picked columns. Storage can be full or forbidden: then they are not kept. */
export function readStored<T>(key: string, fallback: T): T {
  try {
    const text = localStorage.getItem(`myrmidon:${key}`);
    return text === null ? fallback : (JSON.parse(text) as T);
  } catch {
    return fallback;
  }
}

export function writeStored(key: string, value: unknown): void {
  try {
    localStorage.setItem(`myrmidon:${key}`, JSON.stringify(value));
  } catch {
    // nothing depends on it
  }
}
