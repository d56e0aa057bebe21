import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { get, post, type Schemas } from "../../api/client";
import { useLive } from "../../api/live";
import { isAdmin, useSession } from "../../api/session";
import { Action } from "../../components/Action";
import { type Column, DataTable } from "../../components/DataTable";
import { Empty, Loaded } from "../../components/Feedback";
import { Time } from "../../components/Time";
import { commandLine } from "../../lib/command";
import { shortId } from "../../lib/format";

type Release = Schemas["ReleaseInfo"];
const rowKey = (release: Release) => release.digest;
const TONES: Record<string, string> = { active: "text-good", canary: "text-run", bad: "text-bad" };

const COLUMNS: Column<Release>[] = [
  {
    id: "state",
    header: "State",
    cell: (release) => (
      <span className={TONES[release.state] ?? "text-dim"}>
        {release.state}
        {release.canary_share != null && ` ${release.canary_share} %`}
      </span>
    ),
  },
  {
    id: "digest",
    header: "Digest",
    cell: (release) => (
      <code className="text-xs" title={release.digest}>
        {shortId(release.digest)}
      </code>
    ),
  },
  {
    id: "why",
    header: "Why",
    className: "w-full",
    cell: (release) => (
      <span className="[overflow-wrap:anywhere]">
        {release.why} {release.who && <span className="text-dim">{release.who}</span>}
      </span>
    ),
  },
  { id: "servers", header: "Servers", right: true, wide: true, cell: (release) => release.num_servers },
  {
    id: "failures",
    header: "Failures",
    right: true,
    wide: true,
    cell: (release) => <span className={release.num_failures ? "text-bad" : ""}>{release.num_failures}</span>,
  },
  { id: "created", header: "Created", wide: true, cell: (release) => <Time at={release.created_at} /> },
  { id: "action", header: "", cell: (release) => <ReleaseAction release={release} /> },
];

/** Releases of the bot: which one is in use, which one is tried, which one is bad. */
export function Releases() {
  const releases = useLive<Schemas["ReleaseList"]>({
    key: ["releases"],
    fetch: (signal) => get("/api/v1/releases", { signal }),
    everyMs: 5000,
  });
  return (
    <Loaded query={releases} what="The list of releases">
      {(data) => (
        <DataTable
          name="releases"
          caption="Releases of the bot"
          columns={COLUMNS}
          rows={data.releases}
          rowKey={rowKey}
          empty={<Empty title="There are no releases" />}
        />
      )}
    </Loaded>
  );
}

function ReleaseAction({ release }: { release: Release }) {
  const client = useQueryClient();
  const { data: session } = useSession();
  const [reason, setReason] = useState("");
  if (!isAdmin(session)) return null;
  const refresh = () => client.invalidateQueries({ queryKey: ["releases"] });
  const { digest } = release;
  const field = (
    <input
      aria-label="Reason"
      placeholder="reason"
      value={reason}
      onChange={(event) => setReason(event.target.value)}
      className="w-full"
    />
  );
  if (release.state === "bad") {
    return (
      <Action
        label="Allow"
        explanation="The release is rolled out like a new one."
        command={commandLine("myrmidon", "releases", "allow", digest)}
        run={() => post("/api/v1/releases/{digest}/allow", { path: { digest }, body: { reason } }).then(refresh)}
      >
        {field}
      </Action>
    );
  }
  return (
    <Action
      label="Revert"
      danger
      explanation="Bots return to the previous release, and no bot gets this one until it is allowed again."
      command={commandLine("myrmidon", "releases", "revert", digest)}
      run={() => post("/api/v1/releases/{digest}/revert", { path: { digest }, body: { reason } }).then(refresh)}
    >
      {field}
    </Action>
  );
}
