import { ApiError, callRaw } from "./client";

const TAIL_BYTES = 4096;

/** The end of what the last run of a task wrote: of stderr, or of stdout if that is empty. */
export async function fetchTail(id: string, signal: AbortSignal): Promise<string> {
  for (const stream of ["stderr", "stdout"]) {
    try {
      const call = (offset: number, limit: number) =>
        callRaw("get", "/api/v1/tasks/{id}/log", { path: { id }, query: { stream, offset, limit }, signal });
      const length = Number((await call(0, 1)).headers.get("x-log-length") ?? 0);
      if (length === 0) continue;
      return await (await call(Math.max(0, length - TAIL_BYTES), TAIL_BYTES)).text();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    }
  }
  return "";
}
