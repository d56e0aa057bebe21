import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { get, post, remove, type Schemas } from "../../api/client";
import { useLive } from "../../api/live";
import { Action } from "../../components/Action";
import { Command } from "../../components/Copy";
import { type Column, DataTable } from "../../components/DataTable";
import { Cut, Empty, Loaded, MOST } from "../../components/Feedback";
import { Time } from "../../components/Time";
import { commandLine } from "../../lib/command";
import { parsePeriod } from "../../lib/time";

type Token = Schemas["TokenInfo"];
const rowKey = (token: Token) => token.id;

const COLUMNS: Column<Token>[] = [
  {
    id: "name",
    header: "Name",
    className: "w-full min-w-32",
    cell: (token) => <span className={token.revoked_at ? "text-dim line-through" : "font-medium"}>{token.name}</span>,
  },
  { id: "role", header: "Role", cell: (token) => <span className="whitespace-nowrap">{token.role}</span> },
  { id: "group", header: "Group", wide: true, cell: (token) => token.group ?? "all" },
  { id: "created", header: "Created", wide: true, cell: (token) => <Time at={token.created_at} /> },
  {
    id: "expires",
    header: "Ends",
    wide: true,
    cell: (token) =>
      token.revoked_at ? (
        <>
          revoked <Time at={token.revoked_at} />
        </>
      ) : token.expires_at ? (
        <Time at={token.expires_at} />
      ) : (
        "never"
      ),
  },
  { id: "action", header: "", cell: (token) => !token.revoked_at && <Revoke token={token} /> },
];

export function Tokens() {
  const tokens = useLive<Schemas["TokenList"]>({
    key: ["tokens"],
    fetch: (signal) => get("/api/v1/tokens", { query: { limit: MOST }, signal }),
    everyMs: 30_000,
  });
  return (
    <div className="space-y-3">
      <NewToken />
      <Loaded query={tokens} what="The list of tokens">
        {(data) => (
          <>
            <DataTable
              name="tokens"
              caption="Tokens"
              columns={COLUMNS}
              rows={data.tokens}
              rowKey={rowKey}
              empty={<Empty title="There are no tokens" />}
            />
            {data.cursor && <Cut command="myrmidon token list" />}
          </>
        )}
      </Loaded>
    </div>
  );
}

function Revoke({ token }: { token: Token }) {
  const client = useQueryClient();
  return (
    <Action
      label="Revoke"
      danger
      explanation={`The token ${token.name} stops working within seconds on every server. Sessions that it began end too.`}
      command={commandLine("myrmidon", "token", "revoke", token.id)}
      run={() =>
        remove("/api/v1/tokens/{id}", { path: { id: token.id } }).then(() =>
          client.invalidateQueries({ queryKey: ["tokens"] }),
        )
      }
    />
  );
}

const ROLES = ["user", "viewer", "admin", "bot-bootstrap"] as const;

function NewToken() {
  const client = useQueryClient();
  const [name, setName] = useState("");
  const [role, setRole] = useState<string>("user");
  const [expires, setExpires] = useState("");
  const [made, setMade] = useState<Token | null>(null);
  const seconds = parsePeriod(expires);
  const create = async () => {
    const token = await post("/api/v1/tokens", {
      body: { name: name.trim(), role, ...(seconds ? { expires_in_s: seconds } : {}) },
    });
    setMade(token);
    await client.invalidateQueries({ queryKey: ["tokens"] });
  };
  return (
    <div className="space-y-2">
      <Action
        label="New token"
        explanation="The token is shown once, after it was made."
        command={commandLine(
          "myrmidon",
          "token",
          "create",
          "--role",
          role,
          ...(seconds ? ["--expires", expires] : []),
          name.trim() || "NAME",
        )}
        run={create}
      >
        <div className="flex flex-wrap gap-2">
          <input
            aria-label="Name"
            placeholder="for whom or what"
            value={name}
            onChange={(event) => setName(event.target.value)}
          />
          <select aria-label="Role" value={role} onChange={(event) => setRole(event.target.value)}>
            {ROLES.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
          <input
            aria-label="Valid for"
            placeholder="valid for, as 30d"
            value={expires}
            onChange={(event) => setExpires(event.target.value)}
            className="w-36"
          />
        </div>
      </Action>
      {made?.token && (
        <div role="status" className="space-y-1 rounded border border-good p-3">
          <div>The token of {made.name}. It cannot be shown again:</div>
          <Command text={made.token} />
        </div>
      )}
    </div>
  );
}
