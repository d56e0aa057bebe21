/** The command line, curl and Python forms of what the page does. */

/** One word of a POSIX shell command. */
export function quote(word: string): string {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

export function commandLine(...words: (string | null | undefined | false)[]): string {
  return words
    .filter((word): word is string => typeof word === "string")
    .map(quote)
    .join(" ");
}

interface Properties {
  command?: string[];
  dimensions?: Record<string, string[] | string>;
  env?: Record<string, string | null>;
  execution_timeout_s?: number;
  [key: string]: unknown;
}

export interface Rerunnable {
  name: string;
  priority: number;
  tags: string[];
  properties: Properties;
}

/** `myrmidon run` with what a task asked for. */
export function asRunCommand(task: Rerunnable, verb = "run"): string {
  const { command = [], dimensions = {}, env = {} } = task.properties;
  const words = ["myrmidon", verb, "--name", task.name, "--priority", String(task.priority)];
  for (const [key, values] of Object.entries(dimensions)) {
    for (const value of [values].flat()) {
      if (key === "pool") words.push("--pool", value);
      else words.push("-d", `${key}=${value}`);
    }
  }
  for (const [key, value] of Object.entries(env)) words.push("-e", `${key}=${value ?? ""}`);
  for (const tag of task.tags) if (!isDerived(tag, dimensions)) words.push("-t", tag);
  return commandLine(...words, "--", ...command);
}

/** Tags that the server adds itself: one for each dimension, the user, the priority and so on. */
function isDerived(tag: string, dimensions: Record<string, string[] | string>): boolean {
  const at = tag.indexOf(":");
  const key = tag.slice(0, at);
  const value = tag.slice(at + 1);
  if (["user", "priority", "service_account", "authenticated", "swarming.terminate", "rbe"].includes(key)) return true;
  return [dimensions[key] ?? []].flat().some((one) => one === value || one.split("|").includes(value));
}

/** The same call of the API with curl; the token stays a variable. */
export function asCurl(method: string, url: string, body?: unknown): string {
  const words = ["curl", "-sS"];
  if (method !== "GET") words.push("-X", method);
  const parts = [commandLine(...words), '-H "Authorization: Bearer $MYRMIDON_TOKEN"'];
  if (body !== undefined) parts.push(commandLine("--json", JSON.stringify(body)));
  return [...parts, quote(url)].join(" ");
}

/** The same requests with the Python client. */
export function asPython(server: string, tasks: unknown[]): string {
  return [
    "import os",
    "",
    "from myrmidon.sdk.client import Client",
    "from myrmidon.sdk.transport import Transport",
    "",
    `client = Client(Transport(${JSON.stringify(server)}, os.environ["MYRMIDON_TOKEN"]))`,
    `print(client.submit(${toPython(tasks)}))`,
  ].join("\n");
}

export function toPython(value: unknown, indent = 0): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string" || typeof value === "number") return JSON.stringify(value);
  const pad = " ".repeat(indent + 4);
  const end = `\n${" ".repeat(indent)}`;
  if (Array.isArray(value)) {
    if (value.every((one) => one === null || typeof one !== "object"))
      return `[${value.map((one) => toPython(one)).join(", ")}]`;
    return `[\n${value.map((one) => `${pad}${toPython(one, indent + 4)},`).join("\n")}${end}]`;
  }
  const entries = Object.entries(value as object);
  if (entries.length === 0) return "{}";
  return `{\n${entries.map(([key, one]) => `${pad}${JSON.stringify(key)}: ${toPython(one, indent + 4)},`).join("\n")}${end}}`;
}
