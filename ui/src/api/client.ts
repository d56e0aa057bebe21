/** Calls of the API: JSON in and out, errors in words, the CSRF token of the session on every change. */
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];
type Method = "get" | "post" | "put" | "delete";
type Operation<P extends keyof paths, M extends Method> = paths[P][M];
export type Answer<P extends keyof paths, M extends Method> =
  Operation<P, M> extends {
    responses: { 200: { content: { "application/json": infer T } } };
  }
    ? T
    : never;

export interface Problem {
  field: string;
  message: string;
}

export class ApiError extends Error {
  constructor(
    /** 0 if the server did not answer. */
    readonly status: number,
    readonly code: string,
    message: string,
    readonly problems: Problem[] = [],
    readonly reason = "",
  ) {
    super(message);
  }

  get isGone(): boolean {
    return this.status === 404;
  }
}

type QueryValue = string | number | boolean | null | undefined | readonly string[];
export interface CallOptions {
  /** Values of the {placeholders} in the path. */
  path?: Record<string, string>;
  query?: Record<string, QueryValue>;
  body?: unknown;
  signal?: AbortSignal | undefined;
  headers?: Record<string, string>;
}

let csrfToken: string | null = null;
let onSignedOut: (reason: string) => void = () => {};

export function setCsrfToken(token: string | null): void {
  csrfToken = token;
}

/** What to do when a call finds that nobody is signed in; the reason is that of the server's answer. */
export function whenSignedOut(action: (reason: string) => void): void {
  onSignedOut = action;
}

/** The address of a call; values of the path are percent-encoded, so that an id stays one text. */
export function addressOf(path: string, options: CallOptions = {}): string {
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(options.path?.[name] ?? ""));
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(options.query ?? {})) {
    if (value === undefined || value === null || value === "") continue;
    if (Array.isArray(value)) for (const one of value) query.append(key, one);
    else query.append(key, String(value));
  }
  const text = query.toString();
  return text ? `${filled}?${text}` : filled;
}

async function send(method: Method, path: string, options: CallOptions): Promise<Response> {
  const headers: Record<string, string> = { accept: "application/json", ...options.headers };
  if (method !== "get") {
    if (csrfToken) headers["x-csrf-token"] = csrfToken;
    // A repeated call with the same key is carried out once: the browser may repeat a request on its own.
    headers["idempotency-key"] = randomKey();
  }
  if (options.body !== undefined) headers["content-type"] = "application/json";
  const init: RequestInit = { method: method.toUpperCase(), headers, credentials: "same-origin" };
  if (options.body !== undefined) init.body = JSON.stringify(options.body);
  if (options.signal) init.signal = options.signal;
  try {
    return await fetch(addressOf(path, options), init);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server does not answer. It may be restarting, or the network is down.");
  }
}

function randomKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The raw answer of a call that is not JSON, such as a part of a log. */
export async function callRaw(method: Method, path: string, options: CallOptions = {}): Promise<Response> {
  let response = await send(method, path, options);
  if (response.status === 403 && method !== "get") {
    const error = await errorOf(response.clone());
    if (error.reason === "csrf" && (await renewCsrf())) response = await send(method, path, options);
  }
  if (response.ok) return response;
  const error = await errorOf(response);
  if (error.status === 401 && !path.startsWith("/auth/")) onSignedOut(error.reason);
  throw error;
}

export async function callJson<T>(method: Method, path: string, options: CallOptions = {}): Promise<T> {
  const response = await callRaw(method, path, options);
  return (await response.json()) as T;
}

async function renewCsrf(): Promise<boolean> {
  const response = await send("get", "/api/v1/session", {});
  if (!response.ok) return false;
  const session = (await response.json()) as { csrf_token: string | null };
  setCsrfToken(session.csrf_token);
  return session.csrf_token !== null;
}

async function errorOf(response: Response): Promise<ApiError> {
  const fallback = `The server answered with status ${response.status}.`;
  try {
    const { error } = (await response.json()) as {
      error: {
        code?: string;
        message?: string;
        reason?: string;
        problems?: { path?: string; where?: string; code?: string; allowed?: string }[];
      };
    };
    const problems = (error.problems ?? []).map((one) => ({
      field: String(one.path ?? one.where ?? ""),
      message: String(one.allowed ?? one.code ?? ""),
    }));
    return new ApiError(
      response.status,
      error.code ?? "error",
      error.message ?? fallback,
      problems,
      error.reason ?? "",
    );
  } catch {
    return new ApiError(response.status, "error", fallback);
  }
}

/** GET with the types of the OpenAPI document. */
export function get<P extends keyof paths & string>(path: P, options: CallOptions = {}): Promise<Answer<P, "get">> {
  return callJson<Answer<P, "get">>("get", path, options);
}

export function post<P extends keyof paths & string>(path: P, options: CallOptions = {}): Promise<Answer<P, "post">> {
  return callJson<Answer<P, "post">>("post", path, { body: {}, ...options });
}

export function put<P extends keyof paths & string>(path: P, options: CallOptions = {}): Promise<Answer<P, "put">> {
  return callJson<Answer<P, "put">>("put", path, options);
}

export function remove<P extends keyof paths & string>(
  path: P,
  options: CallOptions = {},
): Promise<Answer<P, "delete">> {
  return callJson<Answer<P, "delete">>("delete", path, options);
}
