"""The exceptions of functions, as runs report them and as answers show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import MsgspecError, Struct, json, structs

from myrmidon.model.secret_masking import SecretForms
from myrmidon.model.task_result import Evidence
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import task_request
from myrmidon.wire.functions import FunctionError

MAX_ERROR_BYTES: Final = 64 << 10
_MAX_MESSAGE_CHARS: Final = 4_096
_MAX_TRACEBACK_CHARS: Final = 32_768
_MAX_NAME_CHARS: Final = 1_024
_MAX_BASES: Final = 64


def stored_error(error: FunctionError) -> str:
    """The JSON text to store, of at most MAX_ERROR_BYTES. The end of a traceback says most, so its begin is cut."""
    clean = FunctionError(
        type=_clean(error.type[:_MAX_NAME_CHARS]),
        message=_clean(error.message[:_MAX_MESSAGE_CHARS]),
        traceback=_clean(error.traceback[-_MAX_TRACEBACK_CHARS:]),
        bases=[_clean(name[:_MAX_NAME_CHARS]) for name in error.bases[:_MAX_BASES]],
        args=error.args,
        place=_clean(error.place[:_MAX_NAME_CHARS]),
    )
    for smaller in (clean, structs.replace(clean, args=None), structs.replace(clean, args=None, bases=[])):
        text = json.encode(smaller)
        if len(text) <= MAX_ERROR_BYTES:
            return text.decode()
    return json.encode(structs.replace(clean, args=None, bases=[], traceback=clean.traceback[-2_048:])).decode()


def _clean(text: str) -> str:
    """The text without lone surrogates, which JSON and the databases cannot hold."""
    return text.encode("utf-8", "replace").decode()


def show_error(text: str | None, forms: SecretForms | None) -> FunctionError | None:
    """A stored error; the secret of its task is masked, because an exception may quote it."""
    if text is None:
        return None
    try:
        error = json.decode(text, type=FunctionError)
    except MsgspecError:
        return None
    if forms is None:
        return error
    return FunctionError(
        type=error.type,
        message=forms.mask_text(error.message),
        traceback=forms.mask_text(error.traceback),
        bases=error.bases,
        args=_masked(error.args, forms),
        place=forms.mask_text(error.place),
    )


def _masked(value: Any, forms: SecretForms) -> Any:
    if value is None:
        return None
    shown = json.encode(value).decode()
    return value if forms.mask_text(shown) == shown else None


class ShownEnd(Struct, frozen=True):
    """How a run ended besides its state: a sentence for people, and the exception of a function."""

    message: str = ""
    error: FunctionError | None = None


NO_END: Final = ShownEnd()


def shown_ends(tx: Tx, ends: Mapping[int, tuple[str | None, str | None]]) -> dict[int, ShownEnd]:
    """The ends of several tasks, from the stored evidence and error, with their secrets masked."""
    known = {task_id: end for task_id, end in ends.items() if any(end)}
    secrets = task_request.secrets(tx, sorted(known)) if known else {}
    shown = {}
    for task_id, (evidence, error) in known.items():
        forms = SecretForms(secrets[task_id]) if secrets.get(task_id) else None
        text = json.decode(evidence, type=Evidence).message if evidence else ""
        shown[task_id] = ShownEnd(forms.mask_text(text) if forms else text, show_error(error, forms))
    return shown


def shown_errors(tx: Tx, errors: Mapping[int, str | None]) -> dict[int, FunctionError]:
    """The errors of several tasks, masked; tasks without one are left out."""
    texts = {task_id: text for task_id, text in errors.items() if text is not None}
    secrets = task_request.secrets(tx, sorted(texts)) if texts else {}
    forms = {task_id: SecretForms(secret) for task_id, secret in secrets.items() if secret}
    shown = {task_id: show_error(text, forms.get(task_id)) for task_id, text in texts.items()}
    return {task_id: error for task_id, error in shown.items() if error is not None}
