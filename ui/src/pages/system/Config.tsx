import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, type Schemas } from "../../api/client";
import { useLive } from "../../api/live";
import { Command } from "../../components/Copy";
import { Empty, Loaded } from "../../components/Feedback";
import { Panel } from "../../components/Panel";
import { Time } from "../../components/Time";
import { commandLine } from "../../lib/command";
import { diffLines, withContext } from "../../lib/diff";
import { shortId } from "../../lib/format";

/** Files of the configuration with their history. They are not edited here: they are code for the whole fleet. */
export function Config() {
  const config = useLive<Schemas["FleetSettings"]>({
    key: ["config"],
    fetch: (signal) => get("/api/v1/config", { signal }),
    everyMs: 10_000,
  });
  const [file, setFile] = useState("");
  return (
    <Loaded query={config} what="The configuration">
      {(data) => {
        const files = Object.keys(data.files).sort();
        if (files.length === 0) {
          return (
            <Empty title="There is no configuration" command="myrmidon config put bot_config.py">
              The server runs with its defaults. docs/fleet.md describes bots.toml, pools.toml and bot_config.py. A file
              is checked before it becomes active on all servers:
            </Empty>
          );
        }
        const shown = files.includes(file) ? file : (files[0] ?? "");
        return (
          <div className="space-y-3">
            <p className="text-dim">
              Version {shortId(data.version)}, changed <Time at={data.created_at} /> by {data.who || "somebody"}.{" "}
              {data.in_force ? "It is in force." : <span className="text-warn">This server does not use it yet.</span>}
            </p>
            <div className="flex flex-wrap gap-1">
              {files.map((name) => (
                <button
                  key={name}
                  type="button"
                  aria-pressed={name === shown}
                  onClick={() => setFile(name)}
                  className={`rounded px-2 py-0.5 font-mono text-xs ${name === shown ? "bg-accent-soft" : "text-dim"}`}
                >
                  {name}
                </button>
              ))}
            </div>
            <FileHistory file={shown} key={shown} />
            <p className="text-dim">
              Files are not edited here: they are code for the whole fleet. This command checks a change together with
              the other files, shows it and activates it on all servers:
            </p>
            <Command text={commandLine("myrmidon", "config", "put", shown)} />
          </div>
        );
      }}
    </Loaded>
  );
}

function FileHistory({ file }: { file: string }) {
  const history = useQuery({
    queryKey: ["config-history", file],
    queryFn: ({ signal }) => get("/api/v1/config/history", { query: { file, limit: 20 }, signal }),
  });
  const [at, setAt] = useState(0);
  const versions = history.data?.versions ?? [];
  const chosen = versions[at];
  const before = versions[at + 1];
  if (history.error) return <p className="text-bad">{history.error.message}</p>;
  if (!chosen) return <p className="text-dim">Loading …</p>;
  return (
    <div className="grid gap-3 lg:grid-cols-[240px_minmax(0,1fr)]">
      <Panel title="History" flush>
        <ul>
          {versions.map((version, i) => (
            <li key={version.version}>
              <button
                type="button"
                aria-pressed={i === at}
                onClick={() => setAt(i)}
                className={`block w-full px-3 py-1 text-left ${i === at ? "bg-accent-soft" : "hover:bg-panel"}`}
              >
                <Time at={version.created_at} /> <span className="text-dim">{version.who}</span>
              </button>
            </li>
          ))}
        </ul>
      </Panel>
      <Panel title={before ? "What changed" : "First version"} flush>
        <pre tabIndex={0} className="max-h-[60vh] overflow-auto p-2 font-mono text-xs">
          {withContext(diffLines(before?.content ?? "", chosen.content ?? "")).map((line, i) =>
            line === null ? (
              <div key={i} className="text-dim">
                ⋯
              </div>
            ) : (
              <div
                key={i}
                className={
                  line.kind === "added"
                    ? "bg-good-soft text-good"
                    : line.kind === "removed"
                      ? "bg-bad-soft text-bad"
                      : ""
                }
              >
                {line.kind === "added" ? "+ " : line.kind === "removed" ? "- " : "  "}
                {line.text}
              </div>
            ),
          )}
        </pre>
        <details className="border-t border-line p-2">
          <summary className="text-dim">The whole file</summary>
          <pre className="max-h-96 overflow-auto font-mono text-xs">{chosen.content}</pre>
        </details>
      </Panel>
    </div>
  );
}
