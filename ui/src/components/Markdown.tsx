import { useMemo } from "react";
import { type Block, type Inline, parseMarkdown } from "../lib/markdown";

/** A summary in Markdown, as elements: nothing in the text can become HTML. */
export function Markdown({ text }: { text: string }) {
  const blocks = useMemo(() => parseMarkdown(text), [text]);
  return (
    <div className="space-y-2 [overflow-wrap:anywhere]">
      {blocks.map((block, i) => (
        <BlockView key={i} block={block} />
      ))}
    </div>
  );
}

function BlockView({ block }: { block: Block }) {
  switch (block.kind) {
    case "heading":
      return (
        <div
          role="heading"
          aria-level={Math.min(6, block.level + 2)}
          className={block.level < 3 ? "text-base font-semibold" : "font-semibold"}
        >
          <Inlines items={block.children} />
        </div>
      );
    case "paragraph":
      return (
        <p>
          <Inlines items={block.children} />
        </p>
      );
    case "quote":
      return (
        <blockquote className="border-l-2 border-line-strong pl-2 text-dim">
          <Inlines items={block.children} />
        </blockquote>
      );
    case "code":
      return <pre className="overflow-x-auto rounded bg-panel p-2 font-mono text-xs">{block.text}</pre>;
    case "rule":
      return <hr className="border-line" />;
    case "list": {
      const items = block.items.map((item, i) => (
        <li key={i}>
          <Inlines items={item} />
        </li>
      ));
      return block.ordered ? (
        <ol className="list-decimal pl-5">{items}</ol>
      ) : (
        <ul className="list-disc pl-5">{items}</ul>
      );
    }
    case "table":
      return (
        <table className="border-collapse">
          <thead>
            <tr>
              {block.head.map((cell, i) => (
                <th key={i} className="border border-line px-2 text-left">
                  <Inlines items={cell} />
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {block.rows.map((row, i) => (
              <tr key={i}>
                {row.map((cell, j) => (
                  <td key={j} className="border border-line px-2">
                    <Inlines items={cell} />
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      );
  }
}

function Inlines({ items }: { items: Inline[] }) {
  return (
    <>
      {items.map((item, i) => (
        <InlineView key={i} item={item} />
      ))}
    </>
  );
}

function InlineView({ item }: { item: Inline }) {
  switch (item.kind) {
    case "text":
      return <>{item.text}</>;
    case "code":
      return <code className="rounded bg-panel px-1 font-mono text-xs">{item.text}</code>;
    case "strong":
      return (
        <strong>
          <Inlines items={item.children} />
        </strong>
      );
    case "em":
      return (
        <em>
          <Inlines items={item.children} />
        </em>
      );
    case "link":
      return (
        <a href={item.href} rel="noopener noreferrer nofollow" target="_blank" className="text-accent">
          <Inlines items={item.children} />
        </a>
      );
  }
}
