import { columnVisibilityFeature, createColumnHelper, tableFeatures, useTable } from "@tanstack/react-table";
import { type ReactNode, useEffect, useMemo, useRef, useState } from "react";
import { readStored, writeStored } from "../lib/stored";
import { useKeys } from "./Keys";

const features = tableFeatures({ columnVisibilityFeature });

export interface Column<T> {
  id: string;
  header: string;
  cell: (row: T) => ReactNode;
  /** Not shown until somebody picks it. */
  optional?: boolean;
  /** Not shown on narrow screens. */
  wide?: boolean;
  right?: boolean;
  className?: string;
}

interface Props<T> {
  /** Names the table in the browser's storage: picked columns are kept. */
  name: string;
  columns: Column<T>[];
  rows: T[];
  rowKey: (row: T) => string;
  /** Called for Enter on the row that j and k have chosen. */
  onOpen?: (row: T) => void;
  /** Rows that can be selected for an action on many. */
  selected?: ReadonlySet<string>;
  onSelect?: (selected: Set<string>) => void;
  caption: string;
  /** Changes of this value mark a row for a moment. */
  version?: (row: T) => string;
  empty?: ReactNode;
}

export function DataTable<T>(props: Props<T>) {
  const { name, columns, rows, rowKey } = props;
  const [visibility, setVisibility] = useColumnVisibility(name, columns);
  const definitions = useMemo(() => {
    const helper = createColumnHelper<typeof features, { row: T }>();
    return helper.columns(
      columns.map((column) =>
        helper.display({ id: column.id, header: column.header, cell: ({ row }) => column.cell(row.original.row) }),
      ),
    );
  }, [columns]);
  const data = useMemo(() => rows.map((row) => ({ row })), [rows]);
  const table = useTable({
    features,
    columns: definitions,
    data,
    getRowId: ({ row }) => rowKey(row),
    state: { columnVisibility: visibility },
    onColumnVisibilityChange: setVisibility,
  });
  const [current, setCurrent] = useCurrentRow(rows, rowKey, props.onOpen);
  const changed = useChangedRows(rows, rowKey, props.version);
  const byId = new Map(columns.map((column) => [column.id, column]));
  const styleOf = (id: string) => {
    const column = byId.get(id);
    return `${column?.wide ? "hidden lg:table-cell" : ""} ${column?.right ? "whitespace-nowrap text-right" : "text-left"} ${column?.className ?? ""}`;
  };
  const { selected, onSelect } = props;
  const toggle = (key: string) => {
    const next = new Set(selected);
    if (!next.delete(key)) next.add(key);
    onSelect?.(next);
  };
  const pickable = columns.some((column) => column.optional);
  if (rows.length === 0 && props.empty) return <>{props.empty}</>;
  return (
    <div className="relative">
      {pickable && (
        <details className="absolute right-0 top-0 z-10 hidden lg:block">
          <summary title="Columns" aria-label="Columns" className="block px-2 text-right leading-6 text-dim">
            ⋯
          </summary>
          <div className="absolute right-0 rounded border border-line-strong bg-raised p-2 text-left">
            {table.getAllLeafColumns().map((column) => (
              <label key={column.id} className="flex items-center gap-2 whitespace-nowrap">
                <input
                  type="checkbox"
                  checked={column.getIsVisible()}
                  onChange={(event) => column.toggleVisibility(event.target.checked)}
                />
                {byId.get(column.id)?.header}
              </label>
            ))}
          </div>
        </details>
      )}
      {/* A table that is wider than a narrow screen scrolls by itself; the keyboard can reach it. */}
      <div className="overflow-x-auto" tabIndex={-1}>
        <table className="w-full border-collapse">
          <caption className="sr-only">{props.caption}</caption>
          <thead>
            {table.getHeaderGroups().map((group) => (
              <tr
                key={group.id}
                className={`border-b border-line text-dim ${pickable ? "lg:[&>th:last-child]:pr-8" : ""}`}
              >
                {onSelect && (
                  <th scope="col" className="w-6 px-1 py-1 sm:w-8 sm:px-2">
                    <input
                      type="checkbox"
                      aria-label="Select all rows"
                      className="block"
                      checked={rows.length > 0 && selected?.size === rows.length}
                      onChange={(event) => onSelect(new Set(event.target.checked ? rows.map(rowKey) : []))}
                    />
                  </th>
                )}
                {group.headers.map((header) => (
                  <th
                    key={header.id}
                    scope="col"
                    className={`whitespace-nowrap px-1 py-1 text-xs sm:px-2 font-medium ${styleOf(header.column.id)}`}
                  >
                    <table.FlexRender header={header} />
                  </th>
                ))}
              </tr>
            ))}
          </thead>
          <tbody>
            {table.getRowModel().rows.map((row, index) => (
              <tr
                key={row.id}
                data-key={row.id}
                data-current={index === current || undefined}
                onMouseDown={() => setCurrent(index)}
                className={`border-b border-line last:border-0 hover:bg-panel ${index === current ? "bg-accent-soft" : ""} ${changed.has(row.id) ? "changed" : ""}`}
              >
                {onSelect && (
                  <td className="px-1 py-1 align-top sm:px-2">
                    <input
                      type="checkbox"
                      aria-label={`Select ${row.id}`}
                      className="mt-1 block"
                      checked={selected?.has(row.id) ?? false}
                      onChange={() => toggle(row.id)}
                    />
                  </td>
                )}
                {row.getVisibleCells().map((cell) => (
                  <td key={cell.id} className={`px-1 py-1 align-top sm:px-2 ${styleOf(cell.column.id)}`}>
                    <table.FlexRender cell={cell} />
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}

type Visibility = Record<string, boolean>;

function useColumnVisibility<T>(name: string, columns: Column<T>[]) {
  const [visibility, setVisibility] = useState<Visibility>(() => ({
    ...Object.fromEntries(columns.filter((column) => column.optional).map((column) => [column.id, false])),
    ...readStored<Visibility>(`columns:${name}`, {}),
  }));
  const update = (change: Visibility | ((before: Visibility) => Visibility)) =>
    setVisibility((before) => {
      const after = typeof change === "function" ? change(before) : change;
      writeStored(`columns:${name}`, after);
      return after;
    });
  return [visibility, update] as const;
}

/** The row that j, k and Enter act on. */
function useCurrentRow<T>(rows: T[], rowKey: (row: T) => string, onOpen?: (row: T) => void) {
  const [current, setCurrent] = useState(-1);
  const move = (by: number) => {
    const next = Math.max(0, Math.min(rows.length - 1, current + by));
    setCurrent(next);
    const row = rows[next];
    if (row) document.querySelector(`tr[data-key="${CSS.escape(rowKey(row))}"]`)?.scrollIntoView({ block: "nearest" });
  };
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    Enter: () => {
      const row = rows[current];
      if (!row || !onOpen) return false;
      onOpen(row);
      return true;
    },
  });
  return [current, setCurrent] as const;
}

/** Keys of the rows whose version differs from the one that was shown before. */
function useChangedRows<T>(rows: T[], rowKey: (row: T) => string, version?: (row: T) => string): Set<string> {
  const before = useRef<Map<string, string> | null>(null);
  const changed = new Set<string>();
  if (version && before.current) {
    for (const row of rows) {
      const known = before.current.get(rowKey(row));
      if (known !== undefined && known !== version(row)) changed.add(rowKey(row));
    }
  }
  useEffect(() => {
    if (version) before.current = new Map(rows.map((row) => [rowKey(row), version(row)]));
  }, [rows, rowKey, version]);
  return changed;
}
