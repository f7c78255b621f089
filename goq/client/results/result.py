"""The base of the values that the client returns, and the decoder of a node's answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from goq.errors import GoqError

Json = Mapping[str, Any]
Decoded = TypeVar("Decoded", bound="Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A value from one answer of a node.

    ``raw`` is the JSON object as the node sent it, with the fields that this version of the client
    does not know. Comparing two values ignores it.
    """

    raw: Json = field(default_factory=dict, repr=False, compare=False)


def decode(kind: type[Decoded], answer: object, fields: Json | None = None) -> Decoded:
    """Return an answer as a value of a class; unknown fields are only in ``raw``.

    ``fields`` replace fields of the answer whose JSON form is not that of the class. Raises
    ``GoqError`` for an answer that lacks a field or has another type there.
    """
    found = as_object(answer)
    try:
        value = msgspec.convert(found if fields is None else {**found, **fields}, kind)
    except msgspec.ValidationError as error:
        raise GoqError(f"the answer is not goq's: {error}; is it a goq node?") from None
    return replace(value, raw=found)


def as_object(answer: object) -> Json:
    """Return an answer that has to be a JSON object; raise ``GoqError`` for any other."""
    if not isinstance(answer, dict):
        raise GoqError(f"the answer is not goq's: {answer!r:.100} is no object; is it a goq node?")
    return answer


def items_of(answer: object, name: str) -> list[Any]:
    """Return the list that an answer has under a name; raise ``GoqError`` where it has none."""
    items = as_object(answer).get(name)
    if not isinstance(items, list):
        raise GoqError(f"the answer is not goq's: it has no list {name}; is it a goq node?")
    return items
