import { Fragment } from "react";
import { Facts, Panel } from "../../components/Panel";
import { commandLine } from "../../lib/command";
import { showBytes } from "../../lib/format";
import { showDuration } from "../../lib/time";
import type { Task } from "./TaskPage";

interface Properties {
  command?: string[];
  dimensions?: Record<string, string[]>;
  env?: Record<string, string | null>;
  execution_timeout_s?: number | null;
  io_timeout_s?: number | null;
  relative_cwd?: string;
  outputs?: string[];
  idempotent?: boolean;
  caches?: { name: string; path: string }[];
  inputs?: unknown;
}

/** What was asked for, slice by slice. Secrets are never sent to the page. */
export function Request({ task }: { task: Task }) {
  const { slices, has_secret, stdin_size, metadata } = task.request;
  const meta = Object.entries((metadata ?? {}) as Record<string, string>);
  return (
    <Panel title="Request">
      {slices.map((slice, i) => {
        const properties = slice.properties as Properties;
        return (
          <Fragment key={slice.properties_hash}>
            {slices.length > 1 && (
              <h3 className="mb-1 mt-2 font-semibold">
                Slice {i + 1}
                {task.result.slice === i ? " (in use)" : ""}
              </h3>
            )}
            <Facts
              rows={[
                [
                  "Command",
                  (properties.command ?? []).length > 0 && (
                    <code key="c" className="text-xs">
                      {commandLine(...(properties.command ?? []))}
                    </code>
                  ),
                ],
                [
                  "Dimensions",
                  <Pairs
                    key="d"
                    pairs={Object.entries(properties.dimensions ?? {}).map(([k, v]) => [k, v.join(", ")])}
                  />,
                ],
                ["Environment", pairsOrNothing(properties.env)],
                ["Folder", properties.relative_cwd],
                ["Timeout", properties.execution_timeout_s != null && showDuration(properties.execution_timeout_s)],
                ["I/O timeout", properties.io_timeout_s != null && showDuration(properties.io_timeout_s)],
                ["Expires after", showDuration(slice.expiration_s)],
                ["Without bots", slice.wait_for_capacity ? "waits" : "fails at once"],
                ["Outputs", (properties.outputs ?? []).join(", ")],
                ["Caches", (properties.caches ?? []).map((cache) => cache.name).join(", ")],
                ["Idempotent", properties.idempotent && "yes: an equal task's result is used again"],
              ]}
            />
          </Fragment>
        );
      })}
      <div className="mt-1">
        <Facts
          rows={[
            ["Secret", has_secret && "•••••• (never shown; masked in the log)"],
            ["Stdin", stdin_size != null && showBytes(stdin_size)],
            ["Metadata", meta.length > 0 && <Pairs key="m" pairs={meta} />],
          ]}
        />
      </div>
    </Panel>
  );
}

function pairsOrNothing(env: Record<string, string | null> | undefined) {
  const pairs = Object.entries(env ?? {}).map(([key, value]): [string, string] => [key, value ?? "(unset)"]);
  return pairs.length > 0 && <Pairs pairs={pairs} />;
}

function Pairs({ pairs }: { pairs: [string, string][] }) {
  return (
    <>
      {pairs.map(([key, value]) => (
        <div key={key} className="font-mono text-xs [overflow-wrap:anywhere]">
          {key}={value}
        </div>
      ))}
    </>
  );
}
