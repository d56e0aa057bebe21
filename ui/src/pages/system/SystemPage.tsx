import { Link, useParams } from "@tanstack/react-router";
import { get, type Schemas } from "../../api/client";
import { useLive } from "../../api/live";
import { isAdmin, mayWrite, type Session, useSession } from "../../api/session";
import { type Column, DataTable } from "../../components/DataTable";
import { Empty, Loaded } from "../../components/Feedback";
import { Page } from "../../components/Page";
import { Facts, Panel } from "../../components/Panel";
import { StateBadge } from "../../components/StateBadge";
import { Time } from "../../components/Time";
import { useCurrentShown } from "../../components/useShown";
import { showBytes } from "../../lib/format";
import { clockOffsetMs, showDuration } from "../../lib/time";
import { Config } from "./Config";
import { Events } from "./Events";
import { Releases } from "./Releases";
import { Tokens } from "./Tokens";
import { Webhooks } from "./Webhooks";

type Allowed = (session: Session | undefined) => boolean;
const anyone: Allowed = () => true;
const PARTS: [string, string, Allowed][] = [
  ["servers", "Servers", anyone],
  ["releases", "Releases", anyone],
  ["config", "Configuration", isAdmin],
  ["tokens", "Tokens", isAdmin],
  ["webhooks", "Webhooks", mayWrite],
  ["events", "Events", anyone],
];

/** The servers themselves and what administrators set. */
export function SystemPage() {
  const { part = "servers" } = useParams({ strict: false }) as { part?: string };
  const { data: session } = useSession();
  const tabs = useCurrentShown<HTMLElement>(`${part} ${session?.role}`);
  const parts = PARTS.filter(([, , allowed]) => allowed(session));
  const refused = session && PARTS.some(([key, , allowed]) => key === part && !allowed(session));
  return (
    <Page title="System">
      <nav ref={tabs} aria-label="Parts of the system" className="overflow-x-auto border-b border-line">
        <ul className="flex">
          {parts.map(([key, label]) => (
            <li key={key}>
              <Link
                to="/system/$part"
                params={{ part: key }}
                aria-current={part === key ? "page" : undefined}
                className={`block whitespace-nowrap border-b-2 px-3 py-1.5 hover:no-underline ${part === key ? "border-accent" : "border-transparent text-dim"}`}
              >
                {label}
              </Link>
            </li>
          ))}
        </ul>
      </nav>
      {refused ? <Empty title={`The role ${session.role} does not see this part`} /> : session && <Part part={part} />}
    </Page>
  );
}

function Part({ part }: { part: string }) {
  switch (part) {
    case "servers":
      return <Servers />;
    case "releases":
      return <Releases />;
    case "config":
      return <Config />;
    case "tokens":
      return <Tokens />;
    case "webhooks":
      return <Webhooks />;
    case "events":
      return <Events />;
    default:
      return <Empty title="There is no such part of the system" />;
  }
}

type Server = Schemas["ServerLine"];
const rowKey = (server: Server) => server.id;

const COLUMNS: Column<Server>[] = [
  { id: "state", header: "State", cell: (server) => <StateBadge state={server.alive ? "alive" : "dead"} /> },
  {
    id: "address",
    header: "Address",
    className: "w-full",
    cell: (server) => (
      <>
        {server.address}:{server.port} {server.this && <span className="text-dim">(answers this page)</span>}
      </>
    ),
  },
  { id: "started", header: "Started", cell: (server) => <Time at={server.started_at} /> },
  { id: "heartbeat", header: "Heartbeat", cell: (server) => <Time at={server.heartbeat} /> },
];

function Servers() {
  const servers = useLive<Schemas["ServerList"]>({
    key: ["servers"],
    fetch: (signal) => get("/api/v1/servers", { signal }),
    everyMs: 5000,
  });
  const info = useLive<Schemas["ServerInfo"]>({
    key: ["server"],
    fetch: (signal) => get("/api/v1/server", { signal }),
    everyMs: 10_000,
  });
  const health = useLive<{ ok: boolean; problems: string[]; notes: string[] }>({
    key: ["readyz"],
    // A server that is not ready answers 503 with the same body.
    fetch: async (signal) => (await fetch("/readyz", { signal })).json(),
    everyMs: 5000,
  });
  const skew = clockOffsetMs() / 1000;
  return (
    <div className="space-y-3">
      {health.data && health.data.problems.length > 0 && (
        <ul role="alert" className="list-disc rounded border border-bad bg-bad-soft py-2 pl-8 pr-3 text-bad">
          {health.data.problems.map((problem) => (
            <li key={problem}>{problem}</li>
          ))}
        </ul>
      )}
      {health.data?.notes?.map((note) => (
        <p key={note} className="text-warn">
          {note}
        </p>
      ))}
      <Panel title="Servers" flush>
        <Loaded query={servers} what="The list of servers">
          {(data) => (
            <DataTable name="servers" caption="Servers" columns={COLUMNS} rows={data.servers} rowKey={rowKey} />
          )}
        </Loaded>
      </Panel>
      <Loaded query={info} what="The server's description">
        {(data) => (
          <Panel title="This server">
            <Facts
              rows={[
                ["Version", data.version],
                [
                  "Bot release",
                  <code key="b" className="text-xs [overflow-wrap:anywhere]">
                    {data.bot_version}
                  </code>,
                ],
                ["Public address", data.public_url],
                ["Disk free", data.disk_free != null && showBytes(data.disk_free)],
                [
                  "Retention",
                  data.retention_waits_until && (
                    <>
                      waits until <Time at={data.retention_waits_until} />
                    </>
                  ),
                ],
                [
                  "This browser's clock",
                  Math.abs(skew) > 5 &&
                    `${showDuration(Math.abs(skew))} ${skew > 0 ? "behind" : "ahead of"} the server; times on this page are corrected`,
                ],
              ]}
            />
          </Panel>
        )}
      </Loaded>
    </div>
  );
}
