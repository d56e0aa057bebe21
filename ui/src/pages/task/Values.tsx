import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { addressOf, callRaw, get, type Schemas } from "../../api/client";
import { useLive } from "../../api/live";
import { Panel } from "../../components/Panel";
import { plural, showBytes } from "../../lib/format";
import { decodeMessagePack } from "../../lib/msgpack";
import { isFinal } from "../../lib/states";
import type { Task } from "./TaskPage";

type Value = Schemas["TaskValue"];

/** Larger values are downloaded, not shown. */
const MAX_SHOWN_BYTES = 64 << 10;

/** The inputs of a task with where they come from, and its outputs. */
export function Values({ task }: { task: Task }) {
  const id = task.task_id;
  const values = useLive<Schemas["TaskValues"]>({
    key: ["task-values", id],
    fetch: (signal) => get("/api/v1/tasks/{id}/values", { path: { id }, signal }),
    topics: [`task:${id}`],
    settled: () => isFinal(task.result.state),
  });
  const { inputs = [], outputs = [] } = values.data ?? {};
  if (inputs.length === 0 && outputs.length === 0) return null;
  return (
    <Panel title="Inputs and outputs" flush>
      <ValueList title="Input" values={inputs} isInput />
      <ValueList title="Output" values={outputs} />
    </Panel>
  );
}

function ValueList({ title, values, isInput = false }: { title: string; values: Value[]; isInput?: boolean }) {
  if (values.length === 0) return null;
  return (
    <ul aria-label={`${title}s`}>
      {values.map((value) => (
        <li key={value.position} className="space-y-1 border-b border-line px-3 py-1.5 last:border-0">
          <ValueLine name={`${title} ${value.position + 1}`} value={value} isInput={isInput} />
          {(value.parts?.length ?? 0) > 0 && <Parts value={value} />}
        </li>
      ))}
    </ul>
  );
}

function Parts({ value }: { value: Value }) {
  const parts = value.parts ?? [];
  const more = (value.num_parts ?? 0) - parts.length;
  return (
    <details className="pl-3">
      <summary className="text-dim">{plural(value.num_parts ?? 0, "part")}</summary>
      <ul className="mt-1 space-y-1">
        {parts.map((part) => (
          <li key={part.position}>
            <ValueLine name={`Part ${part.position + 1}`} value={part} isInput />
          </li>
        ))}
        {more > 0 && <li className="text-dim">and {plural(more, "further part")}</li>}
      </ul>
    </details>
  );
}

function ValueLine({ name, value, isInput }: { name: string; value: Value; isInput: boolean }) {
  const [open, setOpen] = useState(false);
  const gathered = value.num_parts != null;
  const small = (value.size ?? 0) <= MAX_SHOWN_BYTES;
  return (
    <>
      <div className="flex flex-wrap items-baseline gap-x-2">
        <span className="font-medium">{name}</span>
        <code className="text-xs [overflow-wrap:anywhere]">{value.type}</code>
        <span className="text-dim">{isInput && <Origin value={value} />}</span>
        {!gathered && (
          <span className="ml-auto flex gap-2">
            <span className="text-dim">{value.size == null ? "not written yet" : showBytes(value.size)}</span>
            {value.size != null && small && (
              <button type="button" aria-expanded={open} className="text-accent" onClick={() => setOpen(!open)}>
                {open ? "hide" : "show"}
              </button>
            )}
            {value.size != null && (
              <a
                href={addressOf("/api/v1/values/{id}", { path: { id: value.value_id } })}
                download={`${value.value_id}.msgpack`}
                className="text-accent"
              >
                download
              </a>
            )}
          </span>
        )}
      </div>
      {open && <Content id={value.value_id} />}
    </>
  );
}

function Origin({ value }: { value: Value }) {
  if (value.num_parts != null) return <>gathered from several tasks</>;
  if (value.source) {
    return (
      <>
        from{" "}
        <Link to="/tasks/$id" params={{ id: value.source.task_id }} className="text-accent">
          {value.source.label}
        </Link>
        , output {value.source.position + 1}
      </>
    );
  }
  return <>{value.shared ? "shared value" : "constant"}</>;
}

/** The content of a small value as JSON. */
function Content({ id }: { id: string }) {
  const content = useQuery({
    queryKey: ["value", id],
    queryFn: async ({ signal }) => {
      const answer = await callRaw("get", "/api/v1/values/{id}", { path: { id }, signal });
      return textOf(new Uint8Array(await answer.arrayBuffer()));
    },
    staleTime: Number.POSITIVE_INFINITY,
  });
  if (content.error) return <p className="text-bad">{content.error.message}</p>;
  return (
    <pre
      tabIndex={0}
      className="max-h-72 overflow-auto whitespace-pre-wrap rounded bg-panel p-2 font-mono text-xs [overflow-wrap:anywhere]"
    >
      {content.data ?? "Loading …"}
    </pre>
  );
}

function textOf(bytes: Uint8Array): string {
  try {
    return JSON.stringify(decodeMessagePack(bytes), null, 2);
  } catch {
    return "This value is not MessagePack. Download its bytes.";
  }
}
