const SIZE_UNITS = ["B", "KB", "MB", "GB", "TB", "PB"];

/** Bytes in decimal units: "12.3 MB". */
export function showBytes(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < SIZE_UNITS.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${SIZE_UNITS[unit]}`;
}

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });

export function showNumber(value: number): string {
  return NUMBER.format(value);
}

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${showNumber(n)} ${n === 1 ? one : many}`;
}

export function showPercent(share: number): string {
  return `${Math.round(share * 100)} %`;
}

export function showCost(usd: number): string {
  if (usd === 0) return "$0";
  if (usd < 0.0001) return "under $0.0001";
  return usd < 0.01 ? `$${usd.toPrecision(2)}` : `$${usd.toFixed(2)}`;
}

/** The first characters of an id or digest, enough to recognise it. */
export function shortId(id: string): string {
  return id.length > 12 ? `${id.slice(0, 10)}…` : id;
}

/** A tag or dimension in its two parts; the value keeps further colons. */
export function splitTag(tag: string): [string, string] {
  const at = tag.indexOf(":");
  return at < 0 ? [tag, ""] : [tag.slice(0, at), tag.slice(at + 1)];
}
