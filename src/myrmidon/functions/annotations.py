"""The annotation of a value, for values that come without one."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from myrmidon.functions.types import TypeProblem, kind_of


def annotation_of(value: Any) -> Any:
    """The narrowest annotation that the value has. Raises TypeProblem if that is not one type of values.

    Of a list and a dict the first item decides; that the others fit is checked when the value is encoded.
    """
    if isinstance(value, (list, dict)) and not value:
        raise TypeProblem(f"the items of an empty {type(value).__name__} have no type; name it with type=")
    if type(value) is list:
        return List[annotation_of(value[0])]  # type: ignore[misc]
    if type(value) is dict:
        key, item = next(iter(value.items()))
        return Dict[annotation_of(key), annotation_of(item)]  # type: ignore[misc]
    if type(value) is tuple and value:
        return Tuple[tuple(annotation_of(item) for item in value)]
    kind_of(type(value))
    return type(value)
