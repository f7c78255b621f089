"""The types of settings: how their values are parsed, checked and formatted.

A type parses what people write: text, or the numbers, lists and mappings of YAML and JSON. It
raises ``InvalidInput`` with the name of the setting. ``parse`` reads back what ``format`` returns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from goq import limits
from goq.errors import InvalidInput
from goq.model import AUDIT_TOPIC, check_name, check_tenant
from goq.units import format_duration_ms, format_size_bytes, parse_duration_ms, parse_size_bytes

NONE = "none"
STRICT = "strict"
NUMBERS = "numbers"
T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

_LANE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,49}", re.ASCII)


class Kind(NamedTuple, Generic[T]):
    """The parser and the formatter of a setting."""

    parse: Callable[[Any, str], T]
    format: Callable[[T], str]


def optional(kind: Kind[T]) -> Kind[T | None]:
    """Return a type that may also be ``none``."""
    return Kind(
        lambda value, field: None if value in (None, NONE) else kind.parse(value, field),
        lambda value: NONE if value is None else kind.format(value),
    )


def duration(low_ms: int, high_ms: int) -> Kind[int]:
    """Return the type of a duration within bounds, in milliseconds."""
    return _bounded(parse_duration_ms, format_duration_ms, low_ms, high_ms, "30s, 5m, 12h or 7d")


def size(low: int, high: int) -> Kind[int]:
    """Return the type of a size within bounds, in bytes."""
    return _bounded(parse_size_bytes, format_size_bytes, low, high, "4096B, 64KiB or 1GiB")


def count(low: int, high: int) -> Kind[int]:
    """Return the type of a whole number within bounds."""
    return _bounded(_parse_count, str, low, high)


def text(chars_max: int) -> Kind[str]:
    """Return the type of a text of at most so many characters."""

    def parse(value: Any, field: str) -> str:
        if not isinstance(value, str) or len(value) > chars_max:
            raise InvalidInput(f"not a text of at most {chars_max} characters", field=field)
        return value

    return Kind(parse, str)


def _parse_topic(value: Any, field: str) -> str:
    if not isinstance(value, str) or value == AUDIT_TOPIC:
        raise InvalidInput(f"{str(value)[:80]!r} is not the name of a topic", field=field)
    return check_name(value, "topic", field=field)


topic_name: Kind[str] = Kind(_parse_topic, str)


def share(low: float, high: float) -> Kind[float]:
    """Return the type of a number within bounds."""

    def parse(value: Any, field: str) -> float:
        number = _number(value, field)
        if not low <= number <= high:
            raise InvalidInput(
                f"{value!r} is out of bounds: allowed is {low:g} to {high:g}", field=field
            )
        return number

    return Kind(parse, _format_number)


def choice(kind: type[E]) -> Kind[E]:
    """Return the type of one word of an enumeration."""

    def parse(value: Any, field: str) -> E:
        try:
            return kind(value)
        except ValueError:
            raise InvalidInput(f"{value!r} is not one of {', '.join(kind)}", field=field) from None

    return Kind(parse, str)


def _parse_truth(value: Any, field: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise InvalidInput(f"{value!r} is neither true nor false", field=field)


truth: Kind[bool] = Kind(_parse_truth, lambda value: "true" if value else "false")


def _parse_lanes(value: Any, field: str) -> tuple[str, ...]:
    if value == NUMBERS:
        return ()
    names = tuple(_listed(value, field))
    if not 1 <= len(names) <= limits.LANES_MAX:
        raise InvalidInput(
            f"a topic has 1 to {limits.LANES_MAX} lanes, not {len(names)}; write {NUMBERS} for"
            f" the numbers 0 to {limits.LANES_MAX - 1}",
            field=field,
        )
    for name in names:
        if not _LANE_NAME.fullmatch(name) or name == NUMBERS:
            raise InvalidInput(
                f"{name[:80]!r} cannot name a lane: use a letter, then up to 49 of A-Z a-z 0-9 _ -",
                field=field,
            )
    if len(set(names)) < len(names):
        raise InvalidInput("two lanes have one name", field=field)
    return names


lanes: Kind[tuple[str, ...]] = Kind(_parse_lanes, lambda names: ",".join(names) or NUMBERS)
"""Names of lanes, the most urgent first; empty for the numbers 0 to 255."""


def _parse_weights(value: Any, field: str) -> tuple[int, ...] | None:
    if value == STRICT:
        return None
    weights = tuple(_parse_count(item, field=field) for item in _listed(value, field))
    if not 1 <= len(weights) <= limits.LANES_MAX:
        raise InvalidInput(
            f"there are 1 to {limits.LANES_MAX} weights, not {len(weights)}", field=field
        )
    for weight in weights:
        if not 1 <= weight <= limits.LANE_WEIGHT_MAX:
            raise InvalidInput(
                f"a weight is 1 to {limits.LANE_WEIGHT_MAX}, not {weight}; write {STRICT} for the"
                " most urgent lane always first",
                field=field,
            )
    return weights


lane_weights: Kind[tuple[int, ...] | None] = Kind(
    _parse_weights, lambda weights: STRICT if weights is None else ",".join(map(str, weights))
)
"""Shares of the lanes by number; None for strict priority."""


def _parse_shares(value: Any, field: str) -> tuple[tuple[str, float], ...]:
    if value in (None, NONE):
        return ()
    pairs: Iterable[tuple[str, Any]]
    if isinstance(value, Mapping):
        pairs = [(str(name), weight) for name, weight in value.items()]
    else:
        pairs = [_pair(item, field) for item in _listed(value, field)]
    shares = {name: _number(weight, field) for name, weight in pairs}
    if len(shares) > limits.TENANT_WEIGHTS_MAX:
        raise InvalidInput(
            f"at most {limits.TENANT_WEIGHTS_MAX} tenants have a weight", field=field
        )
    for name, weight in shares.items():
        check_tenant(name, field=field)
        if "," in name or "=" in name:
            raise InvalidInput(f"a weight cannot be set for {name!r}: , and = divide", field=field)
        if not limits.TENANT_WEIGHT_MIN <= weight <= limits.TENANT_WEIGHT_MAX:
            raise InvalidInput(
                f"the weight of {name!r} is {weight:g}; allowed is {limits.TENANT_WEIGHT_MIN:g} to"
                f" {limits.TENANT_WEIGHT_MAX:g}",
                field=field,
            )
    return tuple(sorted(shares.items()))


tenant_weights: Kind[tuple[tuple[str, float], ...]] = Kind(
    _parse_shares,
    lambda shares: ",".join(f"{n}={_format_number(w)}" for n, w in shares) or NONE,
)
"""Shares of tenants by name; a tenant without one has 1."""


def _bounded(
    parse: Callable[..., int], form: Callable[[int], str], low: int, high: int, examples: str = ""
) -> Kind[int]:
    def parse_bounded(value: Any, field: str) -> int:
        if not isinstance(value, str | int | float):
            raise InvalidInput(f"{value!r} is neither a text nor a number", field=field)
        if examples and _is_unitless(
            value
        ):  # 7 would be read as days by some, as seconds by others
            raise InvalidInput(f"{value!r} has no unit; write it as {examples}", field=field)
        number = parse(value, field=field)
        if not low <= number <= high:
            raise InvalidInput(
                f"{value!r} is out of bounds: allowed is {form(low)} to {form(high)}", field=field
            )
        return number

    return Kind(parse_bounded, form)


def _is_unitless(value: str | float) -> bool:
    """Return whether a value is a number other than zero without a unit."""
    try:
        return float(value) != 0
    except ValueError:
        return False


def _parse_count(value: Any, *, field: str) -> int:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value) if len(value) < 20 else -1
    if type(value) is not int:
        raise InvalidInput(f"{value!r} is not a whole number", field=field)
    return value


def _number(value: Any, field: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise InvalidInput(f"{value!r} is not a number", field=field)
    return number


def _format_number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _listed(value: Any, field: str) -> list[Any]:
    if isinstance(value, str):
        return [item.strip() for item in value.split(",")]
    if not isinstance(value, list | tuple) or not all(isinstance(i, str | int) for i in value):
        raise InvalidInput(f"{value!r} is not a list; write a,b,c", field=field)
    return list(value)


def _pair(item: Any, field: str) -> tuple[str, str]:
    name, equals, weight = str(item).rpartition("=")
    if not equals:
        raise InvalidInput(f"{item!r} is not NAME=WEIGHT", field=field)
    return name, weight
