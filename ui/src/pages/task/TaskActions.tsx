import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { ApiError, post } from "../../api/client";
import { mayWrite, useSession } from "../../api/session";
import { Action } from "../../components/Action";
import { Button } from "../../components/Button";
import { Command } from "../../components/Copy";
import { Dialog } from "../../components/Dialog";
import { ErrorText } from "../../components/Feedback";
import { asCurl, asPython, asRunCommand, commandLine, type Rerunnable } from "../../lib/command";
import { isFinal } from "../../lib/states";
import type { Task } from "./TaskPage";

/** The task's request as a body of POST /api/v1/tasks. */
export function resubmission(task: Task): Record<string, unknown> {
  const { request } = task;
  const derived = /^(pool|priority|service_account|user|authenticated):/;
  return {
    name: request.name,
    priority: request.priority,
    tags: request.tags.filter((tag) => !derived.test(tag)),
    ...(request.user ? { user: request.user } : {}),
    slices: request.slices.map((slice) => ({
      properties: withoutDefaults(slice.properties as Record<string, unknown>),
      expiration_s: slice.expiration_s,
      wait_for_capacity: slice.wait_for_capacity,
    })),
  };
}

function withoutDefaults(properties: Record<string, unknown>): Record<string, unknown> {
  const isEmpty = (value: unknown) =>
    value === null || value === "" || value === false || (typeof value === "object" && Object.keys(value).length === 0);
  return Object.fromEntries(Object.entries(properties).filter(([, value]) => !isEmpty(value)));
}

export function TaskActions({ task }: { task: Task }) {
  const client = useQueryClient();
  const { data: session } = useSession();
  const [copying, setCopying] = useState(false);
  const [editing, setEditing] = useState(false);
  const id = task.task_id;
  const refresh = () => client.invalidateQueries({ queryKey: ["task", id] });
  const ended = isFinal(task.result.state);
  const writes = mayWrite(session);
  return (
    <>
      {writes && !ended && (
        <Action
          label="Cancel"
          danger
          disabled={task.result.killing}
          explanation={
            task.result.state === "RUNNING"
              ? "The command gets SIGTERM, and SIGKILL after its grace period. The task ends as killed."
              : "The task ends as cancelled and never starts."
          }
          command={commandLine("myrmidon", "task", "cancel", id)}
          run={() => post("/api/v1/tasks/{id}/cancel", { path: { id }, body: { kill_running: true } }).then(refresh)}
        />
      )}
      {writes && ended && (
        <Action
          label="Rerun"
          explanation="The same task runs again, as a new run of this task. Its earlier runs and logs are kept."
          command={commandLine("myrmidon", "task", "rerun", task.result.state === "SUCCEEDED" && "--force", id)}
          run={() =>
            post("/api/v1/tasks/{id}/rerun", { path: { id }, body: { force: task.result.state === "SUCCEEDED" } }).then(
              refresh,
            )
          }
        />
      )}
      {writes && <Button onClick={() => setEditing(true)}>Edit and rerun</Button>}
      <Button onClick={() => setCopying(true)}>Copy as …</Button>
      {copying && <CopyAs task={task} onClose={() => setCopying(false)} />}
      {editing && <EditAndRerun task={task} onClose={() => setEditing(false)} />}
    </>
  );
}

function CopyAs({ task, onClose }: { task: Task; onClose: () => void }) {
  const body = { tasks: [resubmission(task)] };
  const rerunnable: Rerunnable = {
    ...task.request,
    properties: (task.request.slices[0]?.properties ?? {}) as Rerunnable["properties"],
  };
  const server = window.location.origin;
  const forms: [string, string][] = [
    ["Run it again and see its output", asRunCommand(rerunnable)],
    ["Reproduce it on this machine", commandLine("myrmidon", "task", "reproduce", task.task_id)],
    ["Show it", commandLine("myrmidon", "task", "show", task.task_id)],
    ["Submit it with curl", asCurl("POST", `${server}/api/v1/tasks`, body)],
    ["Submit it with Python", asPython(server, body.tasks)],
  ];
  return (
    <Dialog title="Copy as" onClose={onClose} wide>
      <div className="space-y-3">
        {task.request.has_secret && (
          <p className="text-warn">The task has a secret. It is not part of these commands.</p>
        )}
        {forms.map(([label, text]) => (
          <div key={label}>
            <div className="mb-1 text-dim">{label}</div>
            <Command text={text} />
          </div>
        ))}
        <div className="flex justify-end">
          <Button onClick={onClose}>Close</Button>
        </div>
      </div>
    </Dialog>
  );
}

function EditAndRerun({ task, onClose }: { task: Task; onClose: () => void }) {
  const navigate = useNavigate();
  const [text, setText] = useState(() => JSON.stringify(resubmission(task), null, 2));
  const [error, setError] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  const submit = async () => {
    setError(null);
    setBusy(true);
    try {
      const request = JSON.parse(text) as unknown;
      const answer = await post("/api/v1/tasks", { body: { tasks: [request], group: task.group } });
      const made = answer.tasks[0];
      if (!made?.task_id) {
        const problem = (made?.error ?? {}) as { message?: string };
        throw new ApiError(400, "invalid", problem.message ?? "The server did not accept the request.");
      }
      onClose();
      void navigate({ to: "/tasks/$id", params: { id: made.task_id } });
    } catch (caught) {
      setError(caught instanceof Error ? caught : new Error(String(caught)));
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog title="Edit and rerun" onClose={onClose} wide>
      <div className="space-y-3">
        <p className="text-dim">This submits a new task. docs/requests.md describes every field.</p>
        {task.request.has_secret && (
          <p className="text-warn">The task has a secret, which cannot be read: add it again.</p>
        )}
        <textarea
          aria-label="The request as JSON"
          spellCheck={false}
          value={text}
          onChange={(event) => setText(event.target.value)}
          className="h-80 w-full font-mono text-xs"
        />
        {error && <ErrorText error={error} />}
        <div>
          <div className="mb-1 text-dim">On the command line:</div>
          <Command text={`${commandLine("myrmidon", "post", "/api/v1/tasks")} < request.json`} />
        </div>
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Close</Button>
          <Button kind="primary" disabled={busy} onClick={submit}>
            Submit
          </Button>
        </div>
      </div>
    </Dialog>
  );
}
