/** A small Markdown parser for the summaries that tasks write. It gives a tree of known nodes, never HTML. */

export type Inline =
  | { kind: "text"; text: string }
  | { kind: "code"; text: string }
  | { kind: "strong" | "em"; children: Inline[] }
  | { kind: "link"; href: string; children: Inline[] };

export type Block =
  | { kind: "heading"; level: number; children: Inline[] }
  | { kind: "paragraph"; children: Inline[] }
  | { kind: "quote"; children: Inline[] }
  | { kind: "code"; text: string }
  | { kind: "list"; ordered: boolean; items: Inline[][] }
  | { kind: "table"; head: Inline[][]; rows: Inline[][][] }
  | { kind: "rule" };

const LIST = /^\s{0,6}(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const ROW = /^\s*\|(.*)\|\s*$/;

export function parseMarkdown(text: string): Block[] {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const blocks: Block[] = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at] ?? "";
    if (line.trim() === "") {
      at++;
      continue;
    }
    const [block, next] = blockAt(lines, at);
    blocks.push(block);
    at = Math.max(next, at + 1);
  }
  return blocks;
}

function blockAt(lines: string[], at: number): [Block, number] {
  const line = lines[at] ?? "";
  const heading = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line);
  if (heading)
    return [{ kind: "heading", level: heading[1]?.length ?? 1, children: parseInline(heading[2] ?? "") }, at + 1];
  if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) return [{ kind: "rule" }, at + 1];
  if (/^\s*(```|~~~)/.test(line)) return fenced(lines, at);
  if (LIST.test(line)) return list(lines, at);
  if (ROW.test(line) && /^\s*\|[\s:|-]+\|\s*$/.test(lines[at + 1] ?? "")) return table(lines, at);
  if (/^\s*>/.test(line)) {
    const [text, next] = takeWhile(lines, at, (one) => /^\s*>/.test(one));
    return [{ kind: "quote", children: parseInline(text.map((one) => one.replace(/^\s*>\s?/, "")).join("\n")) }, next];
  }
  const [text, next] = takeWhile(lines, at, (one, i) => one.trim() !== "" && (i === at || !startsBlock(one)));
  return [{ kind: "paragraph", children: parseInline(text.join("\n")) }, next];
}

function startsBlock(line: string): boolean {
  return /^(#{1,6}\s|\s*(```|~~~)|\s*>)/.test(line) || LIST.test(line);
}

function takeWhile(lines: string[], at: number, test: (line: string, i: number) => boolean): [string[], number] {
  let end = at;
  while (end < lines.length && test(lines[end] ?? "", end)) end++;
  return [lines.slice(at, end), end];
}

function fenced(lines: string[], at: number): [Block, number] {
  const fence = /^\s*(```|~~~)/.exec(lines[at] ?? "")?.[1] ?? "```";
  const [text, end] = takeWhile(lines, at + 1, (line) => !line.trim().startsWith(fence));
  return [{ kind: "code", text: text.join("\n") }, end + 1];
}

function list(lines: string[], at: number): [Block, number] {
  const ordered = LIST.exec(lines[at] ?? "")?.[1] !== undefined;
  const [text, end] = takeWhile(lines, at, (line) => LIST.test(line) || /^\s{2,}\S/.test(line));
  const items: string[] = [];
  for (const line of text) {
    const item = LIST.exec(line)?.[2];
    if (item !== undefined) items.push(item);
    else items[items.length - 1] += ` ${line.trim()}`;
  }
  return [{ kind: "list", ordered, items: items.map(parseInline) }, end];
}

function table(lines: string[], at: number): [Block, number] {
  const [text, end] = takeWhile(lines, at, (line) => ROW.test(line));
  const cells = (line: string) => (ROW.exec(line)?.[1] ?? "").split("|").map((cell) => parseInline(cell.trim()));
  const [head = "", , ...rows] = text;
  return [{ kind: "table", head: cells(head), rows: rows.map(cells) }, end];
}

const INLINE =
  /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*([^*\n]+?)\*\*|__([^_\n]+?)__|\*([^*\n]+?)\*|\b_([^_\n]+?)_\b|\[([^\]\n]{1,400})\]\(([^()\s]{1,2000})\)/;

/** Nesting is limited, so that a hostile text cannot exhaust the stack. */
export function parseInline(text: string, depth = 0): Inline[] {
  const found: Inline[] = [];
  let rest = text;
  while (rest) {
    const match = depth < 4 ? INLINE.exec(rest) : null;
    if (!match) {
      found.push({ kind: "text", text: rest });
      break;
    }
    if (match.index > 0) found.push({ kind: "text", text: rest.slice(0, match.index) });
    found.push(inlineOf(match, depth));
    rest = rest.slice(match.index + match[0].length);
  }
  return found;
}

function inlineOf(match: RegExpExecArray, depth: number): Inline {
  const [whole, , code, strong1, strong2, em1, em2, label, href] = match;
  if (code !== undefined) return { kind: "code", text: code };
  const strong = strong1 ?? strong2;
  if (strong !== undefined) return { kind: "strong", children: parseInline(strong, depth + 1) };
  const em = em1 ?? em2;
  if (em !== undefined) return { kind: "em", children: parseInline(em, depth + 1) };
  if (label !== undefined && href !== undefined) {
    const safe = safeHref(href);
    if (safe) return { kind: "link", href: safe, children: parseInline(label, depth + 1) };
  }
  return { kind: "text", text: whole };
}

/** Only web addresses and paths of this server; null for anything else, such as javascript: or data:. */
export function safeHref(href: string): string | null {
  if (/^\/(?![/\\])/.test(href)) return href;
  try {
    const url = new URL(href);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}
