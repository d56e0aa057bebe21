/** The line of a log that says why a command has failed. */
import { stripAnsi } from "./ansi";

const ERROR_LINE =
  /\b(error|exception|failed|failure|fatal|panic|assert\w*|traceback|not found|denied|cannot|killed)\b/i;

/** An error with what is wrong after a colon, not only its name. */
const ERROR_WITH_TEXT = /(error|exception|failure|fatal|panic\w*)\b[^:]*: \S/i;

/** The line of a log's end that says most: the last error with a text, else the last one that looks like an error. */
export function tellingLine(tail: string): string {
  const lines = tail
    .split("\n")
    .map((line) =>
      stripAnsi(line)
        .trim()
        .replace(/^E {2,}/, ""),
    )
    .filter(Boolean);
  return (
    lines.findLast((line) => ERROR_WITH_TEXT.test(line)) ??
    lines.findLast((line) => ERROR_LINE.test(line)) ??
    lines.at(-1) ??
    ""
  );
}
