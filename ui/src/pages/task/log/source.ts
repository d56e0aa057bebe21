/** Where the bytes of a log come from: one stream, or both in the order in which they were written. */
import { ApiError, addressOf, callJson, callRaw } from "../../../api/client";
import { type Mark, mergeStreams, type Piece, type Segment, STDERR, STDOUT, segmentAt, timeAt } from "../../../lib/log";

export type StreamName = "stdout" | "stderr" | "both";
const NAMES: Record<number, "stdout" | "stderr"> = { [STDOUT]: "stdout", [STDERR]: "stderr" };

interface Times {
  marks: Mark[];
  /** Where to go on; null if there is no more now. */
  next?: number | null;
}

export class LogSource {
  /** The bytes of each stream that can be read now. */
  lengths: Record<number, number> = { [STDOUT]: 0, [STDERR]: 0 };
  marks: Mark[] = [];
  /** False if the server keeps no times of this log. */
  hasTimes = false;
  private segments: Segment[] = [];
  private timesAfter = 0;

  constructor(
    private readonly task: string,
    private readonly run: number,
    readonly name: StreamName,
  ) {}

  get length(): number {
    const { [STDOUT]: out = 0, [STDERR]: err = 0 } = this.lengths;
    if (this.name === "both") return out + err;
    return this.name === "stdout" ? out : err;
  }

  /** Learn how much there is to read now; `known` are lengths that the stream of changes has told. */
  async refresh(signal?: AbortSignal, known?: { stdout: number; stderr: number }): Promise<void> {
    // Times are fetched after the lengths, so that they cover all bytes that the lengths count.
    const [out, err] = known
      ? [Math.max(known.stdout, this.lengths[STDOUT] ?? 0), Math.max(known.stderr, this.lengths[STDERR] ?? 0)]
      : await Promise.all([this.lengthOf(STDOUT, signal), this.lengthOf(STDERR, signal)]);
    await this.refreshTimes(signal);
    this.setLengths(out, err);
  }

  private setLengths(out: number, err: number): void {
    this.lengths = { [STDOUT]: out, [STDERR]: err };
    if (this.name === "both") this.segments = mergeStreams(this.marks, this.lengths, this.segments);
  }

  private async lengthOf(stream: number, signal?: AbortSignal): Promise<number> {
    const response = await this.fetchRange(stream, this.lengths[stream] ?? 0, 1, signal);
    return Number(response.headers.get("x-log-length") ?? 0);
  }

  /** Fetch the times that were added since. Runs of older bots have none. */
  private async refreshTimes(signal?: AbortSignal): Promise<void> {
    const known = new Set(this.marks.map(([, stream, offset]) => `${stream} ${offset}`));
    for (;;) {
      const times = await this.fetchTimes(signal);
      const added = (times?.marks ?? []).filter(([, stream, offset]) => !known.has(`${stream} ${offset}`));
      if (added.length > 0) this.marks = [...this.marks, ...added];
      this.hasTimes = this.marks.length > 0;
      // The last page is fetched again the next time: it grows.
      if (times?.next === undefined || times.next === null) return;
      this.timesAfter = times.next;
    }
  }

  private async fetchTimes(signal?: AbortSignal): Promise<Times | null> {
    try {
      const query = { run: this.run, after: this.timesAfter };
      return await callJson<Times>("get", "/api/v1/tasks/{id}/log/times", { path: { id: this.task }, query, signal });
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) return null;
      throw error;
    }
  }

  private fetchRange(stream: number, offset: number, limit: number, signal?: AbortSignal): Promise<Response> {
    return callRaw("get", "/api/v1/tasks/{id}/log", {
      path: { id: this.task },
      query: { run: this.run, stream: NAMES[stream], offset, limit },
      signal,
    });
  }

  /** About `limit` bytes from an offset on. Pieces are in order; none if there is nothing. */
  async read(offset: number, limit: number, signal?: AbortSignal): Promise<Piece[]> {
    if (this.name !== "both") {
      const piece = await this.readStream(this.name === "stdout" ? STDOUT : STDERR, offset, limit, signal);
      return piece.next > offset ? [piece] : [];
    }
    const pieces: Piece[] = [];
    const end = Math.min(this.length, offset + limit);
    let at = offset;
    while (at < end) {
      const segment = segmentAt(this.segments, at);
      if (!segment) break;
      const skipped = at - segment.start;
      const wanted = Math.min(segment.length - skipped, end - at);
      const piece = await this.readStream(segment.stream, segment.offset + skipped, wanted, signal);
      const got = piece.next - piece.offset;
      if (got <= 0) break;
      pieces.push({ ...piece, offset: at, next: at + got });
      at += got;
    }
    return pieces;
  }

  private async readStream(stream: number, offset: number, limit: number, signal?: AbortSignal): Promise<Piece> {
    const response = await this.fetchRange(stream, offset, Math.max(1, limit), signal);
    const next = Number(response.headers.get("x-log-next") ?? offset);
    const length = Number(response.headers.get("x-log-length") ?? 0);
    if (length > (this.lengths[stream] ?? 0) && this.name !== "both") this.lengths[stream] = length;
    return { offset, next, bytes: new Uint8Array(await response.arrayBuffer()), stream };
  }

  /** Where an offset of one stream is in this log. */
  offsetOf(stream: number, offset: number): number {
    if (this.name !== "both") return offset;
    const segment = this.segments.find(
      (one) => one.stream === stream && offset >= one.offset && offset < one.offset + one.length,
    );
    return segment ? segment.start + offset - segment.offset : offset;
  }

  /** The addresses that a search reads, one for each stream. */
  get addresses(): { stream: number; url: string }[] {
    const streams = this.name === "both" ? [STDOUT, STDERR] : [this.name === "stdout" ? STDOUT : STDERR];
    return streams.map((stream) => ({
      stream,
      url: addressOf("/api/v1/tasks/{id}/log", {
        path: { id: this.task },
        query: { run: this.run, stream: NAMES[stream] },
      }),
    }));
  }

  /** When the line at an offset was written. */
  timeOf(offset: number): number | null {
    if (this.name !== "both") return timeAt(this.marks, this.name === "stdout" ? STDOUT : STDERR, offset);
    const segment = segmentAt(this.segments, offset);
    return segment ? timeAt(this.marks, segment.stream, segment.offset + offset - segment.start) : null;
  }
}
