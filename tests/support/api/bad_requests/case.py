"""A request that is refused, and the topic and group that such requests are about."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

PUBLISH = "/v1/topics/bad/messages"
GROUP = "/v1/topics/bad/groups/g"
HUGE = 10**30
DIGITS = "9" * 5000


class Case(NamedTuple):
    method: str
    path: str
    body: Any
    code: str
    field: str | None
    headers: Mapping[str, str] = MappingProxyType({})


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"value": "good"}, fields]}


def b64(size: int) -> str:
    return base64.b64encode(bytes(size)).decode()
