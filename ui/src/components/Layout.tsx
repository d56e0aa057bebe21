import { Link, Outlet, useLocation, useNavigate } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { subscribe, useConnection } from "../api/live";
import { signOut, useSession } from "../api/session";
import { KeysHelp, useKeys } from "./Keys";
import { Palette } from "./Palette";
import { useCurrentShown } from "./useShown";

const PAGES = [
  { to: "/", label: "Home", key: "h" },
  { to: "/tasks", label: "Tasks", key: "t" },
  { to: "/jobs", label: "Jobs", key: "j" },
  { to: "/bots", label: "Bots", key: "b" },
  { to: "/queues", label: "Queues", key: "q" },
  { to: "/functions", label: "Functions", key: "f" },
  { to: "/values", label: "Values", key: "v" },
  { to: "/system", label: "System", key: "s" },
] as const;

export function Layout() {
  const navigate = useNavigate();
  const pages = useCurrentShown<HTMLElement>(useLocation().pathname);
  // Every page keeps the stream open, so that a lost server shows and heals everywhere.
  useEffect(() => subscribe(["jobs"], () => {}), []);
  const [open, setOpen] = useState<"palette" | "keys" | null>(null);
  const go = Object.fromEntries(PAGES.map(({ to, key }) => [`g ${key}`, () => void navigate({ to })]));
  useKeys({
    ...go,
    "?": () => setOpen("keys"),
    "ctrl+k": () => setOpen("palette"),
    "/": () => {
      const filter = document.querySelector<HTMLInputElement>("[data-filter]");
      if (filter) filter.focus();
      else setOpen("palette");
    },
  });
  return (
    <div className="flex min-h-screen flex-col">
      <a href="#main" className="sr-only focus:not-sr-only focus:absolute focus:z-20 focus:bg-raised focus:p-2">
        Skip to the content
      </a>
      <header className="border-b border-line bg-panel">
        <div className="mx-auto flex max-w-[1680px] flex-wrap items-center gap-x-4 px-3 md:px-4">
          <Link to="/" className="py-2 font-semibold hover:no-underline">
            Myrmidon
          </Link>
          <nav
            ref={pages}
            aria-label="Pages"
            className="order-last -mx-3 w-screen scroll-px-3 overflow-x-auto px-3 md:order-none md:mx-0 md:w-auto md:px-0"
          >
            <ul className="flex w-max pr-3 md:pr-0">
              {PAGES.map(({ to, label }) => (
                <li key={to}>
                  <Link
                    to={to}
                    activeOptions={{ exact: to === "/", includeSearch: false }}
                    className="block border-b-2 border-transparent px-2 py-2 text-dim hover:text-text hover:no-underline [&.active]:border-accent [&.active]:text-text"
                  >
                    {label}
                  </Link>
                </li>
              ))}
            </ul>
          </nav>
          <div className="ml-auto flex items-center gap-3">
            <button
              type="button"
              onClick={() => setOpen("palette")}
              className="rounded border border-line-strong bg-bg px-2 py-0.5 text-dim"
            >
              Find <kbd className="hidden font-mono text-xs sm:inline">Ctrl K</kbd>
            </button>
            <ConnectionSign />
            <Account />
          </div>
        </div>
      </header>
      <ConnectionBanner />
      <main id="main" tabIndex={-1} className="min-w-0 flex-1 outline-none">
        <Outlet />
      </main>
      {open === "palette" && <Palette onClose={() => setOpen(null)} />}
      {open === "keys" && <KeysHelp onClose={() => setOpen(null)} />}
    </div>
  );
}

const CONNECTION = {
  live: ["text-good", "live", "Changes appear within a second."],
  polling: ["text-dim", "polling", "There is no live stream; this page asks for changes every two seconds."],
  lost: ["text-bad", "lost", "The server does not answer."],
} as const;

function ConnectionSign() {
  const [color, text, words] = CONNECTION[useConnection()];
  return (
    <span className={`hidden text-xs sm:inline ${color}`} title={words}>
      {text === "lost" ? "✕" : text === "live" ? "●" : "○"} {text}
    </span>
  );
}

function ConnectionBanner() {
  if (useConnection() !== "lost") return null;
  return (
    <div role="alert" className="border-b border-bad bg-bad-soft px-4 py-1 text-bad">
      The server does not answer. What you see may be old; the page keeps trying and continues by itself.
    </div>
  );
}

function Account() {
  const { data: session } = useSession();
  if (!session) return null;
  const leave = async () => {
    await signOut();
    window.location.assign("/login");
  };
  return (
    <details className="relative">
      <summary className="max-w-28 truncate sm:max-w-48 text-dim">{session.name || session.role}</summary>
      <div className="absolute right-0 z-20 mt-1 w-64 space-y-2 rounded border border-line-strong bg-raised p-3">
        <div className="[overflow-wrap:anywhere]">{session.name}</div>
        <div className="text-dim">
          {session.role}
          {session.group && ` in ${session.group}`} · version {session.version}
        </div>
        <div>
          <a href="/api/docs" className="text-accent">
            API
          </a>
        </div>
        {session.via === "session" && (
          <button type="button" className="text-accent" onClick={leave}>
            Sign out
          </button>
        )}
      </div>
    </details>
  );
}
