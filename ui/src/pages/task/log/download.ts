import type { LogSource } from "./source";

const PART = 4 << 20;

/** Saves a whole log to a file. It is fetched in parts: one answer of the server has at most 8 MB. */
export async function downloadLog(source: LogSource, fileName: string): Promise<void> {
  await source.refresh();
  const parts: BlobPart[] = [];
  for (let offset = 0; offset < source.length; ) {
    const pieces = await source.read(offset, PART);
    const last = pieces.at(-1);
    if (!last) break;
    for (const piece of pieces) parts.push(piece.bytes as BlobPart);
    offset = last.next;
  }
  const url = URL.createObjectURL(new Blob(parts, { type: "text/plain" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = fileName;
  link.click();
  URL.revokeObjectURL(url);
}
