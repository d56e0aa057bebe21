import { describe, expect, it } from "vitest";
import { parseInline, parseMarkdown, safeHref } from "./markdown";

describe("summaries", () => {
  it("reads headings, lists, code and tables", () => {
    const blocks = parseMarkdown(
      "# Title\n\ntext **bold** `x`\n\n- a\n- b\n\n```\n<b>\n```\n\n| h | i |\n|---|---|\n| 1 | 2 |\n",
    );
    expect(blocks.map((block) => block.kind)).toEqual(["heading", "paragraph", "list", "code", "table"]);
  });

  it("keeps HTML as text", () => {
    expect(parseInline("<script>alert(1)</script>")).toEqual([{ kind: "text", text: "<script>alert(1)</script>" }]);
  });

  it("makes links of web addresses only", () => {
    expect(safeHref("https://example.com/a")).toBe("https://example.com/a");
    expect(safeHref("/tasks/1")).toBe("/tasks/1");
    for (const bad of [
      "javascript:alert(1)",
      " javascript:alert(1)",
      "JaVaScRiPt:x",
      "data:text/html,x",
      "//evil",
      "vbscript:x",
      "/\\evil",
    ]) {
      expect(safeHref(bad)).toBeNull();
    }
    expect(parseInline("[x](javascript:alert(1))").some((one) => one.kind === "link")).toBe(false);
  });

  it("ends on odd input", () => {
    for (const text of [
      "```",
      "|a|\n|",
      "**",
      "`".repeat(5000),
      "[".repeat(5000),
      "* ".repeat(2000),
      ">".repeat(3000),
    ]) {
      expect(parseMarkdown(text)).toBeDefined();
    }
  });
});
