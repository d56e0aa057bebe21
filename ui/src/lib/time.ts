/** Times: the API speaks microseconds UTC; the page shows them relative to the server's clock. */

let offsetMs = 0;

/** Remember how far the browser's clock is from the server's, so that a wrong browser clock does not show. */
export function learnServerTime(serverMicros: number, browserMs: number = Date.now()): void {
  offsetMs = serverMicros / 1000 - browserMs;
}

export function serverNow(): number {
  return (Date.now() + offsetMs) * 1000;
}

export function clockOffsetMs(): number {
  return offsetMs;
}

const UNITS: [string, number][] = [
  ["d", 86400],
  ["h", 3600],
  ["min", 60],
  ["s", 1],
];

/** A duration in at most two units: "3 h 4 min", "12.3 s", "45 ms". */
export function showDuration(seconds: number): string {
  if (!Number.isFinite(seconds)) return "–";
  const sign = seconds < 0 ? "-" : "";
  const s = Math.abs(seconds);
  if (s === 0) return "0 s";
  if (s < 0.9995) return `${sign}${Math.max(1, Math.round(s * 1000))} ms`;
  if (s < 59.95) return `${sign}${trimmed(s)} s`;
  const whole = Math.round(s);
  for (let i = 0; i < UNITS.length - 1; i++) {
    const [name, size] = UNITS[i] as [string, number];
    if (whole < size) continue;
    const [subName, subSize] = UNITS[i + 1] as [string, number];
    const main = Math.floor(whole / size);
    const rest = Math.floor((whole - main * size) / subSize);
    return rest ? `${sign}${main} ${name} ${rest} ${subName}` : `${sign}${main} ${name}`;
  }
  return `${sign}${whole} s`;
}

function trimmed(seconds: number): string {
  return seconds < 9.95 ? seconds.toFixed(1).replace(/\.0$/, "") : Math.round(seconds).toString();
}

/** "5 min ago", "in 3 h", "just now". */
export function showRelative(micros: number, nowMicros: number = serverNow()): string {
  const seconds = (nowMicros - micros) / 1e6;
  if (Math.abs(seconds) < 2) return "just now";
  const s = Math.abs(seconds);
  const [name, size] = UNITS.find(([, size]) => s >= size) ?? ["s", 1];
  const text = `${Math.floor(s / size)} ${name}`;
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

const EXACT = new Intl.DateTimeFormat(undefined, {
  year: "numeric",
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  fractionalSecondDigits: 3,
  timeZoneName: "short",
});

/** The exact time in the reader's time zone, and in UTC. */
export function showExact(micros: number): string {
  const date = new Date(micros / 1000);
  if (Number.isNaN(date.getTime())) return String(micros);
  return `${EXACT.format(date)} (${date.toISOString()})`;
}

const PERIODS: Record<string, number> = { s: 1, m: 60, h: 3600, d: 86400, w: 604800 };

/** Seconds of "90", "15m", "2h" or "1d"; null for anything else. */
export function parsePeriod(text: string): number | null {
  const match = /^\s*(\d{1,9})\s*([smhdw]?)\s*$/.exec(text);
  if (!match) return null;
  return Number(match[1]) * (PERIODS[match[2] || "s"] ?? 1);
}
