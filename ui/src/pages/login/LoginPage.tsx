import { useSearch } from "@tanstack/react-router";
import { type FormEvent, useEffect, useRef, useState } from "react";
import { ApiError } from "../../api/client";
import { signInWithLink, signInWithToken } from "../../api/session";
import { Button } from "../../components/Button";
import { Command } from "../../components/Copy";
import { ErrorText } from "../../components/Feedback";
import { safeReturn, textOf } from "../../lib/search";

function Frame({ children }: { children: React.ReactNode }) {
  useEffect(() => {
    document.title = "Sign in · Myrmidon";
  }, []);
  return (
    <main className="mx-auto mt-16 max-w-md space-y-4 px-4">
      <h1>Myrmidon</h1>
      {children}
    </main>
  );
}

function toError(error: unknown): ApiError {
  return error instanceof ApiError ? error : new ApiError(0, "error", String(error));
}

/** Why a browser that was signed in has to sign in again, by the reason of the server's answer. */
const ENDED: Record<string, string> = {
  expired: "Your session has expired.",
  revoked: "Your session was ended: its token was revoked, or it was signed out elsewhere.",
  untrusted: "The server does not know this session any more.",
};

/** Sign in with a token, or learn how to get a link. */
export function LoginPage() {
  const search = useSearch({ from: "/login" });
  const to = safeReturn(textOf(search, "to") || "/");
  const ended = ENDED[textOf(search, "ended")];
  const [token, setToken] = useState("");
  const [error, setError] = useState<ApiError | null>(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const answer = await signInWithToken(token.trim(), to);
      window.location.assign(safeReturn(answer.to ?? to));
    } catch (caught) {
      setError(toError(caught));
      setBusy(false);
    }
  };
  return (
    <Frame>
      {ended && (
        <p role="status" className="rounded border border-warn bg-warn-soft px-3 py-2 text-warn">
          {ended} Sign in again to continue where you were.
        </p>
      )}
      <form onSubmit={submit} className="space-y-3 rounded border border-line p-4">
        <label className="block">
          <span className="mb-1 block font-semibold">Token</span>
          <input
            type="password"
            name="token"
            autoComplete="off"
            spellCheck={false}
            required
            value={token}
            onChange={(event) => setToken(event.target.value)}
            className="w-full font-mono"
          />
        </label>
        {error && <ErrorText error={error} />}
        <Button kind="primary" type="submit" disabled={busy || !token.trim()}>
          {busy ? "Signing in …" : "Sign in"}
        </Button>
      </form>
      <div className="space-y-2">
        <p className="text-dim">
          Without a token at hand: this command prints a link that signs this browser in. The link works once.
        </p>
        <Command text="myrmidon open" />
      </div>
    </Frame>
  );
}

/** Exchanges the code in the address's fragment for a session. The code is taken out of the address at once. */
export function LinkPage() {
  const [error, setError] = useState<ApiError | null>(null);
  const started = useRef(false);
  useEffect(() => {
    if (started.current) return;
    started.current = true;
    const code = window.location.hash.slice(1);
    window.history.replaceState(null, "", window.location.pathname);
    if (!code) {
      setError(
        new ApiError(0, "incomplete", "The link is incomplete: the part after # is missing. Copy it as a whole."),
      );
      return;
    }
    signInWithLink(code).then(
      (answer) => window.location.replace(safeReturn(answer.to ?? "/")),
      (caught) => setError(toError(caught)),
    );
  }, []);
  return (
    <Frame>
      {error ? (
        <>
          <ErrorText error={error} />
          <p className="text-dim">A link works once and only for some minutes. This command prints a new one:</p>
          <Command text="myrmidon open" />
          <a href="/login" className="text-accent">
            Sign in with a token
          </a>
        </>
      ) : (
        <p role="status">Signing in …</p>
      )}
    </Frame>
  );
}
