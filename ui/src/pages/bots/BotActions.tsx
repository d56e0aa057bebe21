import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { post, remove } from "../../api/client";
import { isAdmin, useSession } from "../../api/session";
import { Action } from "../../components/Action";
import { commandLine } from "../../lib/command";
import type { Bot } from "./BotPage";

export function BotActions({ bot }: { bot: Bot }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const { data: session } = useSession();
  const [reason, setReason] = useState("");
  if (!isAdmin(session)) return null;
  const id = bot.bot_id;
  const path = { id };
  const refresh = () => client.invalidateQueries({ queryKey: ["bot", id] });
  const command = (verb: string, ...words: string[]) => commandLine("myrmidon", "bot", verb, ...words, id);
  const why = reason.trim();
  return (
    <>
      <Action
        label={bot.draining ? "End draining" : "Drain"}
        explanation={bot.draining ? "The bot takes tasks again." : "The bot finishes its runs and gets no new tasks."}
        command={command("drain", ...(bot.draining ? ["--undo"] : []))}
        run={() => post("/api/v1/bots/{id}/drain", { path, body: { draining: !bot.draining } }).then(refresh)}
      />
      <Action
        label={bot.quarantined ? "End quarantine" : "Quarantine"}
        explanation={
          bot.quarantined
            ? "The bot takes tasks again."
            : "The bot gets no tasks until the quarantine ends; its runs continue."
        }
        command={
          bot.quarantined ? command("quarantine", "--undo") : command("quarantine", ...(why ? ["--reason", why] : []))
        }
        run={() =>
          post("/api/v1/bots/{id}/quarantine", {
            path,
            body: { reason: bot.quarantined ? null : why },
          }).then(refresh)
        }
      >
        {!bot.quarantined && (
          <input
            aria-label="Reason"
            placeholder="reason"
            value={reason}
            onChange={(event) => setReason(event.target.value)}
            className="w-full"
          />
        )}
      </Action>
      {bot.alive && (
        <Action
          label="Terminate"
          danger
          explanation="The bot finishes its runs and then exits."
          command={command("terminate")}
          run={() => post("/api/v1/bots/{id}/terminate", { path, body: {} }).then(refresh)}
        />
      )}
      <Action
        label="Revoke"
        danger
        explanation="The bot's credentials end at once. Its runs end with their leases. To use it again, it must be introduced with a new token."
        command={command("revoke")}
        run={() => post("/api/v1/bots/{id}/revoke", { path, body: {} }).then(refresh)}
      />
      {!bot.alive && (
        <Action
          label="Delete"
          danger
          explanation="The bot is removed from the list and its credentials end. Its events and runs are kept."
          command={command("delete")}
          run={() => remove("/api/v1/bots/{id}", { path }).then(() => navigate({ to: "/bots" }))}
        />
      )}
    </>
  );
}
