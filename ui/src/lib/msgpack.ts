/** Reads MessagePack, the form in which values are stored, into what can be shown as JSON. */

export class NotMessagePack extends Error {}

/** The nearest form that JSON has: bytes as base64, keys as texts, large numbers, nan and extensions as texts. */
export function decodeMessagePack(bytes: Uint8Array): unknown {
  const reader = new Reader(bytes);
  const value = reader.value(0);
  if (!reader.atEnd) throw new NotMessagePack("There are bytes after the value.");
  return value;
}

const MAX_DEPTH = 200;
const text = new TextDecoder("utf-8", { fatal: true });

class Reader {
  private at = 0;
  private readonly view: DataView;

  constructor(private readonly bytes: Uint8Array) {
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  get atEnd(): boolean {
    return this.at === this.bytes.length;
  }

  value(depth: number): unknown {
    if (depth > MAX_DEPTH) throw new NotMessagePack("The value is nested too deeply.");
    const code = this.number(1);
    if (code < 0x80) return code;
    if (code < 0x90) return this.map(code & 0x0f, depth);
    if (code < 0xa0) return this.list(code & 0x0f, depth);
    if (code < 0xc0) return this.string(code & 0x1f);
    if (code >= 0xe0) return code - 0x100;
    return this.longer(code, depth);
  }

  private longer(code: number, depth: number): unknown {
    const size = (first: number) => this.number(1 << (code - first));
    if (code === 0xc0) return null;
    if (code === 0xc2 || code === 0xc3) return code === 0xc3;
    if (code >= 0xc4 && code <= 0xc6) return base64(this.take(size(0xc4)));
    if (code >= 0xc7 && code <= 0xc9) return this.extension(size(0xc7));
    if (code === 0xca) return shown(this.view.getFloat32(this.skip(4)));
    if (code === 0xcb) return shown(this.view.getFloat64(this.skip(8)));
    if (code >= 0xcc && code <= 0xce) return size(0xcc);
    if (code === 0xcf) return exact(this.view.getBigUint64(this.skip(8)));
    if (code === 0xd0) return this.view.getInt8(this.skip(1));
    if (code === 0xd1) return this.view.getInt16(this.skip(2));
    if (code === 0xd2) return this.view.getInt32(this.skip(4));
    if (code === 0xd3) return exact(this.view.getBigInt64(this.skip(8)));
    if (code >= 0xd4 && code <= 0xd8) return this.extension(1 << (code - 0xd4));
    if (code >= 0xd9 && code <= 0xdb) return this.string(size(0xd9));
    if (code === 0xdc || code === 0xdd) return this.list(this.number(code === 0xdc ? 2 : 4), depth);
    if (code === 0xde || code === 0xdf) return this.map(this.number(code === 0xde ? 2 : 4), depth);
    throw new NotMessagePack(`There is no value that begins with the byte ${code}.`);
  }

  /** The offset of the next n bytes, which are read by the caller. */
  private skip(n: number): number {
    const at = this.at;
    if (at + n > this.bytes.length) throw new NotMessagePack("The value ends in its middle.");
    this.at += n;
    return at;
  }

  private take(n: number): Uint8Array {
    const at = this.skip(n);
    return this.bytes.subarray(at, at + n);
  }

  private number(size: number): number {
    const at = this.skip(size);
    if (size === 1) return this.view.getUint8(at);
    return size === 2 ? this.view.getUint16(at) : this.view.getUint32(at);
  }

  private string(n: number): string {
    return text.decode(this.take(n));
  }

  private list(n: number, depth: number): unknown[] {
    const items: unknown[] = [];
    for (let i = 0; i < n; i++) items.push(this.value(depth + 1));
    return items;
  }

  private map(n: number, depth: number): Record<string, unknown> {
    const entries: [string, unknown][] = [];
    for (let i = 0; i < n; i++) {
      const key = this.value(depth + 1);
      entries.push([typeof key === "string" ? key : JSON.stringify(key), this.value(depth + 1)]);
    }
    return Object.fromEntries(entries);
  }

  private extension(n: number): string {
    const code = this.view.getInt8(this.skip(1));
    this.skip(n);
    return `<extension ${code}, ${n} ${n === 1 ? "byte" : "bytes"}>`;
  }
}

function shown(value: number): number | string {
  return Number.isFinite(value) ? value : String(value);
}

function exact(value: bigint): number | string {
  const near = Number(value);
  return Number.isSafeInteger(near) ? near : String(value);
}

function base64(bytes: Uint8Array): string {
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary);
}
