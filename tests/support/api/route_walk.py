"""A walk over all routes of nodes: a request for each, and what it reaches.

A handler that is replaced by a spy does nothing: a request that reached none has no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec.structs import force_setattr

from goq.access.rule import Verb
from goq.api.needs import READ_AUDIT, SeesTopic, ServerVerb, TopicVerbs
from goq.api.route import Route, RouteHandler
from goq.http.message import Request, Response

TOPIC, GROUP = "orders", "billing"
VALUES = {
    "topic": TOPIC, "group": GROUP, "id": f"{TOPIC}:0:0", "partition": "0", "producer_id": "7",
    "consumer": "c", "stream": "s", "node": "n9", "token": "nobody11",
    "schedule": "yearly",
}  # fmt: skip
SCHEDULE = {"topic": TOPIC, "every": "366d", "messages": [{"value": "x"}]}
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/v1/topics"): {"name": "orders.new"},
    ("PATCH", "/v1/topics/{topic}"): {"settings": {"retention.age": "3d"}},
    ("POST", "/v1/topics/{topic}/messages"): {"messages": [{"value": "x"}]},
    ("POST", "/v1/topics/{topic}/groups/{group}/receive"): {},
    ("POST", "/v1/topics/{topic}/groups/{group}/members"): {"consumer": "c"},
    ("POST", "/v1/topics/{topic}/groups/{group}/reset"): {"to": "latest"},
    ("PUT", "/v1/topics/{topic}/groups/{group}"): {"settings": {"max_attempts": 9}},
    ("PATCH", "/v1/messages/{id}"): {"priority": "low"},
    ("PATCH", "/v1/topics/{topic}/groups/{group}/streams/{stream}"): {"more": 1},
    ("POST", "/v1/tokens"): {"name": "t", "allow": ["read:*"]},
    ("PUT", "/v1/schedules/{schedule}"): SCHEDULE,
}
OPEN = {"/healthz", "/livez", "/readyz", "/openapi.json", "/docs"}
"""The routes that need no token."""


def path_of(route: Route, values: Mapping[str, str] = VALUES) -> str:
    """Return the path of a route with values in it."""
    path = route.path
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", value)
    return path


def body_of(route: Route) -> Any:
    """Return a body that the route accepts."""
    return BODIES.get((route.method, route.path), {} if route.body is not None else None)


class Spy:
    """The routes whose handlers were reached: a request that reached none has no effect."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def instead_of(self, route: Route) -> RouteHandler:
        """Return a handler that does nothing."""

        def note(_request: Request, *_values: str) -> Response:
            self.calls.append(route.path)
            return Response(200, b"{}", "application/json")

        async def note_later(request: Request, *values: str) -> Response:
            return note(request, *values)

        return note_later if route.is_async else note


@contextmanager
def spied_routes(routes: Iterable[Route]) -> Iterator[Spy]:
    """Have a spy answer all requests for these routes."""
    spy = Spy()
    handlers = [(route, route.handler, route.at_once) for route in routes]
    for route, _, _ in handlers:
        force_setattr(route, "handler", spy.instead_of(route))
        force_setattr(route, "at_once", None)
    try:
        yield spy
    finally:
        for route, handler, at_once in handlers:
            force_setattr(route, "handler", handler)
            force_setattr(route, "at_once", at_once)


def allowed_verbs(route: Route) -> set[str]:
    needs = route.needs
    if needs is READ_AUDIT:
        return {Verb.ADMIN}
    if isinstance(needs, TopicVerbs):
        return {*needs.verbs, Verb.ADMIN}
    if isinstance(needs, ServerVerb):
        return {needs.verb, Verb.ADMIN}
    if isinstance(needs, SeesTopic):
        return set(Verb) - {Verb.OPERATE}
    return set(Verb)


def refusal_of(route: Route, verb: Verb) -> int:
    """Return the status for a verb on all of the walk's topics that the route does not allow."""
    if route.path.startswith("/v1/schedules/{schedule}/") or (
        route.path == "/v1/schedules/{schedule}" and route.method == "DELETE"
    ):
        return 403 if verb is Verb.READ else 404  # whose senders may know of the schedule
    concerns_topics = not (isinstance(route.needs, ServerVerb) or route.needs is READ_AUDIT)
    return 404 if verb is Verb.OPERATE and concerns_topics else 403
