import type { UseQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { ApiError } from "../api/client";
import { Button } from "./Button";
import { Command } from "./Copy";

/** An error in words, with the fields that are wrong. */
export function ErrorText({ error }: { error: Error }) {
  const problems = error instanceof ApiError ? error.problems : [];
  return (
    <div role="alert" className="rounded border border-bad bg-bad-soft px-3 py-2 text-bad [overflow-wrap:anywhere]">
      {error.message}
      {problems.length > 0 && (
        <ul className="mt-1 list-disc pl-4">
          {problems.map((problem) => (
            <li key={problem.field}>
              <code>{problem.field}</code>: {problem.message}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

/** What is shown where there is nothing: what it means, and what to do. */
export function Empty({ title, children, command }: { title: string; children?: ReactNode; command?: string }) {
  return (
    <div className="px-4 py-8 text-center">
      <div className="font-semibold">{title}</div>
      {children && <div className="mt-1 text-dim">{children}</div>}
      {command && (
        <div className="mx-auto mt-3 max-w-xl text-left">
          <Command text={command} />
        </div>
      )}
    </div>
  );
}

/** As many entries as the server lists at once, for lists that are short nearly everywhere. */
export const MOST = 1000;

/** Says that a list has further entries, and what lists them all. */
export function Cut({ command }: { command: string }) {
  return (
    <div className="space-y-1 p-3">
      <p className="text-dim">There are more than {MOST.toLocaleString("en")}. This lists all of them:</p>
      <Command text={command} />
    </div>
  );
}

export function Loading() {
  return (
    <div role="status" className="px-4 py-8 text-center text-dim">
      Loading …
    </div>
  );
}

/** The data of a query, or why there is none. Old data stays visible while the server cannot be reached. */
export function Loaded<T>({
  query,
  children,
  what = "This",
}: {
  query: UseQueryResult<T, ApiError>;
  children: (data: T) => ReactNode;
  what?: string;
}) {
  const { data, error } = query;
  if (data !== undefined && !(error?.isGone ?? false)) return <>{children(data)}</>;
  if (error) return <Failed error={error} what={what} retry={() => void query.refetch()} />;
  return <Loading />;
}

export function Failed({ error, what, retry }: { error: ApiError; what: string; retry: () => void }) {
  if (error.isGone) {
    return (
      <Empty title={`${what} does not exist`}>
        {error.message} It may have been deleted, or belong to a resource group that you cannot see.
      </Empty>
    );
  }
  return (
    <div className="mx-auto max-w-xl space-y-3 p-6">
      <ErrorText error={error} />
      <Button onClick={retry}>Try again</Button>
    </div>
  );
}
