/** Who is signed in, and how to sign in and out. */
import { useQuery } from "@tanstack/react-query";
import { learnServerTime } from "../lib/time";
import { ApiError, callJson, setCsrfToken } from "./client";

export interface Session {
  name: string;
  role: string;
  group: string | null;
  via: string;
  csrf_token: string | null;
  server_time: number;
  version: string;
}

interface ServerInfo {
  version: string;
  time: number;
  who: string;
  role: string;
  group: string | null;
}

/** The session of this browser. A server reached with a token through the development proxy has no sessions. */
export async function fetchSession(): Promise<Session> {
  let session: Session;
  try {
    session = await callJson<Session>("get", "/api/v1/session");
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
    const server = await callJson<ServerInfo>("get", "/api/v1/server");
    session = { ...server, name: server.who, via: "token", csrf_token: null, server_time: server.time };
  }
  setCsrfToken(session.csrf_token);
  learnServerTime(session.server_time);
  return session;
}

export function useSession() {
  return useQuery<Session, ApiError>({ queryKey: ["session"], queryFn: fetchSession, staleTime: 300_000 });
}

/** What the caller's role allows; the server decides, this only hides what it would refuse. */
export function mayWrite(session: Session | undefined): boolean {
  return session?.role === "admin" || session?.role === "user";
}

export function isAdmin(session: Session | undefined): boolean {
  return session?.role === "admin";
}

interface SignedIn {
  to?: string;
}

export function signInWithToken(token: string, to: string): Promise<SignedIn> {
  return callJson<SignedIn>("post", "/auth/login", { body: { to }, headers: { authorization: `Bearer ${token}` } });
}

export function signInWithLink(code: string): Promise<SignedIn> {
  return callJson<SignedIn>("post", "/auth/link", { body: { code } });
}

export async function signOut(): Promise<void> {
  await callJson("post", "/auth/logout", { body: {} });
  setCsrfToken(null);
}
