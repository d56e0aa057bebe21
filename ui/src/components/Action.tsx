import { type ReactNode, useState } from "react";
import { ApiError } from "../api/client";
import { Button } from "./Button";
import { Command } from "./Copy";
import { Dialog } from "./Dialog";
import { ErrorText } from "./Feedback";

interface Props {
  label: string;
  /** What will happen, in a sentence. */
  explanation: ReactNode;
  /** The same on the command line. */
  command: string;
  run: () => Promise<unknown>;
  danger?: boolean;
  disabled?: boolean;
  /** Fields of the dialog. */
  children?: ReactNode;
}

/** A button whose dialog says what it does and shows the command that does the same. */
export function Action({ label, explanation, command, run, danger = false, disabled = false, children }: Props) {
  const [open, setOpen] = useState(false);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const confirm = async () => {
    setBusy(true);
    setError(null);
    try {
      await run();
      setOpen(false);
    } catch (caught) {
      setError(caught instanceof ApiError ? caught : new ApiError(0, "error", String(caught)));
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <Button kind={danger ? "danger" : "plain"} disabled={disabled} onClick={() => setOpen(true)}>
        {label}
      </Button>
      {open && (
        <Dialog title={label} onClose={() => setOpen(false)}>
          <div className="space-y-3">
            <div>{explanation}</div>
            {children}
            <div>
              <div className="mb-1 text-dim">On the command line:</div>
              <Command text={command} />
            </div>
            {error && <ErrorText error={error} />}
            <div className="flex justify-end gap-2">
              <Button onClick={() => setOpen(false)}>Close</Button>
              <Button kind={danger ? "danger" : "primary"} disabled={busy} onClick={confirm}>
                {busy ? "Working …" : label}
              </Button>
            </div>
          </div>
        </Dialog>
      )}
    </>
  );
}
