import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { get, post, remove, type Schemas } from "../../api/client";
import { useLive } from "../../api/live";
import { mayWrite, useSession } from "../../api/session";
import { Action } from "../../components/Action";
import { Button } from "../../components/Button";
import { Command } from "../../components/Copy";
import { type Column, DataTable } from "../../components/DataTable";
import { Empty, Loaded } from "../../components/Feedback";
import { Panel } from "../../components/Panel";
import { Time } from "../../components/Time";
import { commandLine } from "../../lib/command";

type Webhook = Schemas["WebhookInfo"];
type Delivery = Schemas["DeliveryInfo"];
const rowKey = (hook: Webhook) => hook.id;
const deliveryKey = (delivery: Delivery) => delivery.id;

export function Webhooks() {
  const hooks = useLive<Schemas["WebhookList"]>({
    key: ["webhooks"],
    fetch: (signal) => get("/api/v1/webhooks", { signal }),
    everyMs: 5000,
  });
  const { data: session } = useSession();
  const [open, setOpen] = useState<string | null>(null);
  const columns: Column<Webhook>[] = [
    {
      id: "url",
      header: "Address",
      className: "w-full min-w-40",
      cell: (hook) => <span className="[overflow-wrap:anywhere]">{hook.url}</span>,
    },
    {
      id: "kinds",
      header: "Messages",
      wide: true,
      cell: (hook) => <span className="whitespace-nowrap">{hook.kinds.join(", ") || "all"}</span>,
    },
    { id: "pending", header: "Waiting", right: true, wide: true, cell: (hook) => hook.num_pending },
    {
      id: "failures",
      header: "Failures",
      right: true,
      wide: true,
      cell: (hook) => <span className={hook.num_failures ? "text-bad" : ""}>{hook.num_failures}</span>,
    },
    { id: "next", header: "Next attempt", wide: true, cell: (hook) => <Time at={hook.next_attempt_at} /> },
    {
      id: "log",
      header: "",
      cell: (hook) => (
        <Button aria-pressed={open === hook.id} onClick={() => setOpen(open === hook.id ? null : hook.id)}>
          Deliveries
        </Button>
      ),
    },
    { id: "delete", header: "", cell: (hook) => mayWrite(session) && <DeleteHook hook={hook} /> },
  ];
  return (
    <div className="space-y-3">
      {mayWrite(session) && <NewHook />}
      <Loaded query={hooks} what="The list of webhooks">
        {(data) => (
          <DataTable
            name="webhooks"
            caption="Webhooks"
            columns={columns}
            rows={data.webhooks}
            rowKey={rowKey}
            empty={
              <Empty title="There are no webhooks" command="myrmidon webhook create https://hooks.example/myrmidon">
                A webhook gets a signed message for every change of a task or job.
              </Empty>
            }
          />
        )}
      </Loaded>
      {open && <Deliveries id={open} />}
    </div>
  );
}

function DeleteHook({ hook }: { hook: Webhook }) {
  const client = useQueryClient();
  return (
    <Action
      label="Delete"
      danger
      explanation={`No more messages are sent to ${hook.url}; those that wait are dropped.`}
      command={commandLine("myrmidon", "webhook", "delete", hook.id)}
      run={() =>
        remove("/api/v1/webhooks/{id}", { path: { id: hook.id } }).then(() =>
          client.invalidateQueries({ queryKey: ["webhooks"] }),
        )
      }
    />
  );
}

function NewHook() {
  const client = useQueryClient();
  const [url, setUrl] = useState("");
  const [made, setMade] = useState<Webhook | null>(null);
  return (
    <div className="space-y-2">
      <Action
        label="New webhook"
        explanation="Messages about tasks and jobs are sent to this address from now on. The secret that signs them is shown once."
        command={commandLine("myrmidon", "webhook", "create", url || "URL")}
        run={async () => {
          setMade(await post("/api/v1/webhooks", { body: { url: url.trim() } }));
          await client.invalidateQueries({ queryKey: ["webhooks"] });
        }}
      >
        <input
          type="url"
          aria-label="Address"
          placeholder="https://…"
          value={url}
          onChange={(event) => setUrl(event.target.value)}
          className="w-full"
        />
      </Action>
      {made?.secret && (
        <div role="status" className="space-y-1 rounded border border-good p-3">
          <div>The secret of the new webhook. It cannot be shown again:</div>
          <Command text={made.secret} />
        </div>
      )}
    </div>
  );
}

const STATES: Record<string, string> = { delivered: "text-good", failed: "text-bad", pending: "text-wait" };

function Deliveries({ id }: { id: string }) {
  const client = useQueryClient();
  const { data: session } = useSession();
  const deliveries = useQuery({
    queryKey: ["deliveries", id],
    queryFn: ({ signal }) => get("/api/v1/webhooks/{id}/deliveries", { path: { id }, query: { limit: 50 }, signal }),
    refetchInterval: 5000,
  });
  const columns: Column<Delivery>[] = [
    {
      id: "state",
      header: "State",
      cell: (one) => (
        <span className={`whitespace-nowrap ${STATES[one.state]}`}>
          {one.state === "delivered" ? "✓" : one.state === "failed" ? "✕" : "○"} {one.state}
        </span>
      ),
    },
    { id: "kind", header: "Message", className: "w-full", cell: (one) => one.kind },
    { id: "queued", header: "Queued", wide: true, cell: (one) => <Time at={one.queued_at} /> },
    { id: "attempts", header: "Attempts", right: true, wide: true, cell: (one) => one.num_attempts },
    { id: "answer", header: "Answer", cell: (one) => one.error ?? one.status },
    {
      id: "replay",
      header: "",
      cell: (one) =>
        mayWrite(session) && (
          <Action
            label="Send again"
            explanation="The message is sent once more."
            command={commandLine("myrmidon", "webhook", "replay", id, one.id)}
            run={() =>
              post("/api/v1/webhooks/{id}/deliveries/{delivery}/replay", { path: { id, delivery: one.id } }).then(() =>
                client.invalidateQueries({ queryKey: ["deliveries", id] }),
              )
            }
          />
        ),
    },
  ];
  return (
    <Panel title="Deliveries, newest first" flush>
      <DataTable
        name="deliveries"
        caption="Deliveries"
        columns={columns}
        rows={deliveries.data?.deliveries ?? NONE}
        rowKey={deliveryKey}
        empty={<Empty title="Nothing was sent yet" />}
      />
    </Panel>
  );
}

const NONE: Delivery[] = [];
