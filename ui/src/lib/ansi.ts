/**
 * Colours of a log: parses SGR escape sequences (`ESC [ … m`) into spans of text with classes. All other escape
 * sequences and control characters are removed. The result is text, never HTML.
 */

export interface Style {
  fg: string;
  bg: string;
  bold: boolean;
  dim: boolean;
  italic: boolean;
  underline: boolean;
  strike: boolean;
  inverse: boolean;
}

export interface Span {
  text: string;
  /** CSS classes; empty for plain text. */
  classes: string;
}

export const PLAIN: Style = {
  fg: "",
  bg: "",
  bold: false,
  dim: false,
  italic: false,
  underline: false,
  strike: false,
  inverse: false,
};

// CSI sequences, OSC sequences (links, titles) up to BEL or ST, and two-character escapes.
const ESCAPE =
  /\x1b(?:\[([0-?]*)([ -/]*)([@-~]|$)|\][^\x07\x1b]*(?:\x07|\x1b\\|$)|[PX^_][^\x1b]*(?:\x1b\\|$)|[ -/]+[0-~]?|[0-Z\\-~]|$)/g;
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;

/** The spans of a line, and the style that the next line begins with. */
export function parseAnsi(line: string, start: Style = PLAIN): { spans: Span[]; end: Style } {
  const text = overwritten(line);
  if (!text.includes("\x1b")) {
    return { spans: spansOf(text, start), end: start };
  }
  const spans: Span[] = [];
  let style = start;
  let at = 0;
  ESCAPE.lastIndex = 0;
  for (let match = ESCAPE.exec(text); match; match = ESCAPE.exec(text)) {
    spans.push(...spansOf(text.slice(at, match.index), style));
    at = match.index + match[0].length;
    if (match[3] === "m" && !match[2]) style = applySgr(style, match[1] ?? "");
    if (match[0].length === 0) ESCAPE.lastIndex++;
  }
  spans.push(...spansOf(text.slice(at), style));
  return { spans, end: style };
}

/** A terminal goes back to the beginning of the line at a carriage return: progress bars show their last state. */
function overwritten(line: string): string {
  if (!line.includes("\r")) return line;
  const parts = line.split("\r").filter((part) => part !== "");
  return parts.at(-1) ?? "";
}

function spansOf(text: string, style: Style): Span[] {
  const clean = text.replace(CONTROL, "");
  return clean ? [{ text: clean, classes: classesOf(style) }] : [];
}

function classesOf(style: Style): string {
  if (style === PLAIN) return "";
  const [fg, bg] = style.inverse ? [style.bg || "bg", style.fg || "fg"] : [style.fg, style.bg];
  const classes: string[] = [];
  if (fg) classes.push(`ansi-${fg}`);
  if (bg) classes.push(`ansi-on-${bg}`);
  if (style.bold) classes.push("ansi-bold");
  if (style.dim) classes.push("ansi-dim");
  if (style.italic) classes.push("ansi-italic");
  if (style.underline) classes.push("ansi-underline");
  if (style.strike) classes.push("ansi-strike");
  return classes.join(" ");
}

export function applySgr(style: Style, parameters: string): Style {
  const codes = parameters.split(/[;:]/).map((code) => (code === "" ? 0 : Number(code)));
  let next: Style = { ...style };
  for (let i = 0; i < codes.length; i++) {
    const code = codes[i] ?? 0;
    if (code === 0) next = { ...PLAIN };
    else if (code === 38 || code === 48) {
      const [color, used] = extendedColor(codes, i + 1);
      if (code === 38) next.fg = color;
      else next.bg = color;
      i += used;
    } else setOne(next, code);
  }
  return isPlain(next) ? PLAIN : next;
}

function setOne(style: Style, code: number): void {
  if (code >= 30 && code <= 37) style.fg = String(code - 30);
  else if (code >= 40 && code <= 47) style.bg = String(code - 40);
  else if (code >= 90 && code <= 97) style.fg = String(code - 82);
  else if (code >= 100 && code <= 107) style.bg = String(code - 92);
  else FLAGS[code]?.(style);
}

const FLAGS: Record<number, (style: Style) => void> = {
  1: (s) => {
    s.bold = true;
  },
  2: (s) => {
    s.dim = true;
  },
  3: (s) => {
    s.italic = true;
  },
  4: (s) => {
    s.underline = true;
  },
  7: (s) => {
    s.inverse = true;
  },
  9: (s) => {
    s.strike = true;
  },
  22: (s) => {
    s.bold = false;
    s.dim = false;
  },
  23: (s) => {
    s.italic = false;
  },
  24: (s) => {
    s.underline = false;
  },
  27: (s) => {
    s.inverse = false;
  },
  29: (s) => {
    s.strike = false;
  },
  39: (s) => {
    s.fg = "";
  },
  49: (s) => {
    s.bg = "";
  },
};

/** The colour of `38;5;N` or `38;2;R;G;B` as the nearest of the 16, and how many codes it takes. */
function extendedColor(codes: number[], at: number): [string, number] {
  if (codes[at] === 5) return [from256(codes[at + 1] ?? 0), 2];
  if (codes[at] === 2) return [nearest(codes[at + 1] ?? 0, codes[at + 2] ?? 0, codes[at + 3] ?? 0), 4];
  return ["", 0];
}

function from256(n: number): string {
  if (n < 16) return String(Math.max(0, n));
  if (n >= 232) {
    const level = 8 + (Math.min(n, 255) - 232) * 10;
    return nearest(level, level, level);
  }
  const cube = n - 16;
  const level = (i: number) => (i === 0 ? 0 : 55 + i * 40);
  return nearest(level(Math.floor(cube / 36)), level(Math.floor(cube / 6) % 6), level(cube % 6));
}

/** One of the 16 colours, so that the page's light and dark schemes keep every text readable. */
function nearest(r: number, g: number, b: number): string {
  const max = Math.max(r, g, b);
  const min = Math.min(r, g, b);
  if (max - min < 48) return max < 64 ? "0" : max < 160 ? "8" : max < 224 ? "7" : "15";
  const half = (max + min) / 2;
  const bits = (r > half ? 1 : 0) | (g > half ? 2 : 0) | (b > half ? 4 : 0);
  return String(bits + (max > 200 ? 8 : 0));
}

function isPlain(style: Style): boolean {
  return (Object.keys(PLAIN) as (keyof Style)[]).every((key) => style[key] === PLAIN[key]);
}

/** The text of a line without escape sequences, for searching and copying. */
export function stripAnsi(line: string): string {
  return parseAnsi(line)
    .spans.map((span) => span.text)
    .join("");
}
