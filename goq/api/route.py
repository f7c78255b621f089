"""Routes: declared once, matched on requests and described in OpenAPI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from goq.errors import MethodNotAllowed, RouteNotFound
from goq.http.message import Request, Response

Handler = Callable[..., Response | Awaitable[Response]]
FRAMES = "application/vnd.goq.frames"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter."""

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
    errors: Sequence[str] = field(default=())
    has_frames_form: bool = False
    waits: bool = False
    """Whether the answer may wait for messages: then it ends with the client's connection."""
    answer_type: str = JSON


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
        node, values = self._root, []
        for segment in request.path.split("/")[1:]:
            child = node.children.get(segment)
            if child is None:
                child = node.parameter
                if child is None or not segment:
                    raise _no_route(request)
                values.append(segment)
            node = child
        route = node.methods.get("GET" if request.method == "HEAD" else request.method)
        if route is None:
            if not node.methods:
                raise _no_route(request)
            allowed = ", ".join(sorted(node.methods))
            raise MethodNotAllowed(f"{request.path} takes {allowed}, not {request.method}")
        return route, values


def _no_route(request: Request) -> RouteNotFound:
    return RouteNotFound(f"there is no {request.path[:200]}; /docs lists what there is")
