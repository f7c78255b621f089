"""A route: the declaration of what a method and a path take, answer and need.

Each is declared once. The router matches the same declaration that OpenAPI describes. It says which
nodes of a cluster answer (``goq.api.routing_policy``), and what the sender of a request must be
allowed to do (``goq.api.needs``).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import force_setattr

from goq.api.needs import Needs
from goq.api.routing_policy import RoutingPolicy
from goq.api.values import TEXT, Schema
from goq.errors import InvalidInput
from goq.http.message import Request, Response

RouteHandler = Callable[..., Response | Awaitable[Response]]
FRAMES: Final = "application/vnd.goq.frames"
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"


class Parameter(msgspec.Struct, frozen=True):
    """A query parameter or a header."""

    name: str
    description: str
    schema: Schema = msgspec.field(default_factory=lambda: TEXT)
    required: bool = False


class Route(msgspec.Struct, frozen=True):
    """A method, a path with ``{parameters}``, and the handler.

    The handler gets the request and the values of the path parameters.
    """

    method: str
    path: str
    handler: RouteHandler
    summary: str
    body: type[Any] | None = None
    answer: Any = None
    status: int = 200
    parameters: Sequence[Parameter] = ()
    headers: Sequence[Parameter] = ()
    """Headers that only this route reads."""
    errors: Sequence[str] = ()
    """Error codes of this route; codes that any request can cause (``invalid_input``) are left
    out."""
    takes_frames: bool = False
    gives_frames: bool = False
    gives_lines: bool = False
    waits: bool = False
    """Whether the answer may wait for messages; such a request ends with its connection."""
    is_brief: bool = False
    """Whether the answer waits for nothing but the disk, so that a single node needs no task."""
    at_once: Callable[..., Coroutine[Any, Any, Response] | None] | None = None
    """Begins an answer that waits for nothing but the disk; None if ``handler`` must wait. The
    caller must run what it gets. Only a single node calls it."""
    answer_type: str = JSON
    ignores_query: bool = False
    """Whether unknown query parameters are accepted: monitoring systems may add some."""

    needs: Needs | None = None
    """What the sender of a request must be allowed to do; a route without it is refused."""

    is_body_audited: bool = False
    """Whether the audit trail has the body of a request: it has settings and no messages."""

    routing: RoutingPolicy = None
    """Which nodes answer when several nodes lead the topic's partitions."""

    is_audited: bool = False
    """Whether the audit trail records each request."""

    is_async: bool = False
    """Whether the handler is a coroutine function; otherwise it answers at once."""

    def __post_init__(self) -> None:
        if self.needs is None:
            raise ValueError(f"{self.method} {self.path} does not declare what it needs")
        is_audited = self.needs.is_audited and self.method != "GET"
        force_setattr(self, "is_audited", is_audited)
        force_setattr(self, "is_async", inspect.iscoroutinefunction(self.handler))

    def check_query(self, request: Request) -> None:
        """Raise ``InvalidInput`` for a query parameter that the route does not have."""
        if self.ignores_query:
            return
        names = [parameter.name for parameter in self.parameters]
        for name in request.query:
            if name not in names:
                raise InvalidInput(
                    f"unknown parameter {name[:50]!r}; there are {', '.join(names) or 'none'}",
                    field=name[:50],
                )
