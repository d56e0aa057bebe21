import { describe, expect, test } from "vitest";
import { decodeMessagePack, NotMessagePack } from "./msgpack";

const decode = (hex: string) => decodeMessagePack(Uint8Array.from(hex.match(/../g) ?? [], (two) => Number(`0x${two}`)));

describe("MessagePack", () => {
  test.each([
    ["07", 7],
    ["ff", -1],
    ["c0", null],
    ["c3", true],
    ["cd0100", 256],
    ["d1ff00", -256],
    ["cb3ff8000000000000", 1.5],
    ["cb7ff8000000000000", "NaN"],
    ["cf0020000000000001", "9007199254740993"],
    ["d3ffffffffffffff00", -256],
    ["a3616263", "abc"],
    ["d90161", "a"],
    ["c403010203", "AQID"],
    ["9201a161", [1, "a"]],
    ["82a16101a16291c0", { a: 1, b: [null] }],
    ["8107c2", { "7": false }],
    ["d60100000002", "<extension 1, 4 bytes>"],
  ])("%s is read", (hex, value) => {
    expect(decode(hex)).toEqual(value);
  });

  test.each(["", "92", "c1", "0707", "a2ff"])("%s is refused", (hex) => {
    expect(() => decode(hex)).toThrow();
  });

  test("a value that is nested too deeply is refused, not the end of the page", () => {
    expect(() => decode(`${"91".repeat(5000)}c0`)).toThrow(NotMessagePack);
  });

  test("a key does not become the prototype", () => {
    const value = decode("81a95f5f70726f746f5f5f01") as Record<string, unknown>;
    expect(Object.getPrototypeOf(value)).toBe(Object.prototype);
  });
});
