import { type ReactNode, useEffect, useRef } from "react";

/** A modal dialog; Escape and a click beside it close it. */
export function Dialog({
  title,
  onClose,
  children,
  wide = false,
  hideTitle = false,
}: {
  title: string;
  onClose: () => void;
  children: ReactNode;
  wide?: boolean;
  hideTitle?: boolean;
}) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = ref.current;
    dialog?.showModal();
    return () => dialog?.close();
  }, []);
  return (
    <dialog
      ref={ref}
      aria-label={title}
      onClose={onClose}
      onClick={(event) => {
        if (event.target === ref.current) onClose();
      }}
      className={wide ? "w-[720px]" : "w-[520px]"}
    >
      <div className="p-4">
        {!hideTitle && <h1 className="mb-3">{title}</h1>}
        {children}
      </div>
    </dialog>
  );
}
