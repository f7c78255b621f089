"""Routes: declared once, matched on requests and described in OpenAPI."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from goq.api.routing_policy import RoutingPolicy
from goq.errors import InvalidInput, MethodNotAllowed, RouteNotFound
from goq.http.message import Request, Response

Handler = Callable[..., Response | Awaitable[Response]]
FRAMES = "application/vnd.goq.frames"
JSON = "application/json"
NDJSON = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter, or a header."""

    name: str
    description: str
    type: str = "string"
    required: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """A method and a path with ``{parameters}``, which the handler gets after the request."""

    method: str
    path: str
    handler: Handler
    summary: str
    body: type[Any] | None = None
    answer: Any = None
    status: int = 200
    parameters: Sequence[Parameter] = field(default=())
    headers: Sequence[Parameter] = field(default=())
    """Headers that say something to this route alone."""
    errors: Sequence[str] = field(default=())
    """The codes of its own; what any request can meet (``invalid_input``) goes without saying."""
    takes_frames: bool = False
    gives_frames: bool = False
    gives_lines: bool = False
    waits: bool = False
    """Whether the answer may wait for messages: then it ends with the client's connection."""
    answer_type: str = JSON
    ignores_query: bool = False
    """Whether unknown query parameters pass, as monitoring systems may add some."""

    routing: RoutingPolicy = None
    """Which nodes answer, where several have the topic's partitions."""

    is_async: bool = field(init=False)
    """Whether the handler is a coroutine function, else it answers at once."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.handler))

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


class _Node:
    __slots__ = ("children", "methods", "parameter")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.methods: dict[str, Route] = {}


class Router:
    """Finds the route of a request, a step for each segment of its path."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = routes
        self._root = _Node()
        for route in routes:
            node = self._root
            for segment in route.path.split("/")[1:]:
                if segment.startswith("{"):
                    node.parameter = node.parameter or _Node()
                    node = node.parameter
                else:
                    node = node.children.setdefault(segment, _Node())
            node.methods[route.method] = route

    def match(self, request: Request) -> tuple[Route, list[str]]:
        """Return the route and its path parameters.

        Raises ``RouteNotFound``, or ``MethodNotAllowed`` where the path has other methods.
        """
        node, values = self._find(request)
        route = node.methods.get("GET" if request.method == "HEAD" else request.method)
        if route is None:
            allowed = ", ".join(_allowed(node))
            raise MethodNotAllowed(
                f"{request.path[:200]} takes {allowed}, not {request.method}", field="method"
            )
        return route, values

    def allowed(self, request: Request) -> list[str]:
        """Return the methods that the request's path takes."""
        return _allowed(self._find(request)[0])

    def _find(self, request: Request) -> tuple[_Node, list[str]]:
        node, values = self._root, []
        for segment in request.path.split("/")[1:]:
            child = node.children.get(segment)
            if child is None:
                child = node.parameter
                if child is None or not segment:
                    raise _no_route(request)
                values.append(segment)
            node = child
        if not node.methods:
            raise _no_route(request)
        return node, values


def _allowed(node: _Node) -> list[str]:
    return sorted({*node.methods, *(["HEAD"] if "GET" in node.methods else [])})


def _no_route(request: Request) -> RouteNotFound:
    return RouteNotFound(f"there is no {request.path[:200]}; /docs lists what there is")
