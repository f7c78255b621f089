"""What may be a worker's function, and with which options."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import goq
from goq.client import ReceivedMessage
from goq.errors import InvalidInput, UsageError
from tests.support.client.worker_app import is_done, running, state_of
from tests.support.eventually import eventually


def generator(value: bytes) -> Iterator[None]:
    yield


async def async_generator(value: bytes) -> AsyncIterator[None]:
    yield


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a decorator that knows no coroutines makes of a function."""

    @functools.wraps(function)
    def inner(*arguments: Any, **more: Any) -> Any:
        return function(*arguments, **more)

    return inner


class GeneratorObject:
    def __call__(self, value: bytes) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    "function",
    [
        generator,
        async_generator,
        logged(generator),
        functools.partial(generator),
        functools.partial(logged(async_generator)),
        GeneratorObject(),
    ],
)
def test_a_generator_function_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="is a generator function"):
        goq.WorkerApp().worker("orders", group="g")(function)


def test_what_a_plain_function_returns_is_awaited_before_the_message_is_done(
    goq_node: goq.Node, goq_client: goq.Client
) -> None:
    app = goq.WorkerApp(goq_node.url)
    ran: list[bytes] = []

    @app.worker("decorated", group="g")
    @logged
    async def work(value: bytes) -> None:
        ran.append(value)

    goq_client.publish("decorated", b"1")
    with running(app):
        eventually(is_done(goq_client, "decorated"), "it is settled")
    assert ran == [b"1"]


@pytest.mark.parametrize(
    "function", [lambda message: generator(b""), lambda _: async_generator(b"")]
)
def test_a_returned_generator_fails_the_message(
    goq_node: goq.Node, goq_client: goq.Client, function: Callable[..., Any]
) -> None:
    app = goq.WorkerApp(goq_node.url)
    app.worker("unrun", group="g", retry="1h")(function)
    goq_client.publish("unrun", b"1")
    with running(app):
        eventually(lambda: state_of(goq_client, "unrun") == (1, 0, 1), "it waits for its retry")


def test_partials_methods_and_callable_objects_are_functions(
    goq_node: goq.Node, goq_client: goq.Client
) -> None:
    app = goq.WorkerApp(goq_node.url)
    seen: dict[str, Any] = {}

    def work(place: str, value: str, message: ReceivedMessage) -> None:
        seen[place] = value, message.topic

    class Shop:
        def method(self, value: str) -> None:
            seen["method"] = value

    class Plain:
        def __call__(self, value: str) -> None:
            seen["object"] = value

    class Awaited:
        async def __call__(self, value: str) -> None:
            seen["async"] = value

    app.worker("partials", group="g")(functools.partial(work, "partial"))
    app.worker("methods", group="g")(Shop().method)
    app.worker("objects", group="g")(Plain())
    app.worker("awaited", group="g")(Awaited())
    topics = ("partials", "methods", "objects", "awaited")
    for topic in topics:
        goq_client.publish(topic, "1")
    with running(app):
        eventually(lambda: len(seen) == len(topics), "all were called")
    assert seen == {"partial": ("1", "partials"), "method": "1", "object": "1", "async": "1"}


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("topics", []),
        ("topics", ["orders", 3]),
        ("group", ""),
        ("group", None),
        ("concurrency", 0),
        ("concurrency", "8"),
        ("concurrency", True),
        ("visibility", "long"),
        ("visibility", -1),
        ("retry", "soon"),
        ("retry", object()),
        ("reject_on", None),
        ("reject_on", [ValueError, "KeyError"]),
        ("reject_on", int),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(field: str, given: Any) -> None:
    options: dict[str, Any] = {"topics": "orders", "group": "g", field: given}
    with pytest.raises(InvalidInput, match=field) as caught:
        goq.WorkerApp().worker(**options)
    assert caught.value.field == field


def undefined(order: Undefined) -> None: ...  # noqa: F821


def undecodable(order: bytes | str) -> None: ...


def without_parameters() -> None: ...


def by_keyword(*, order: bytes) -> None: ...


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (undefined, "annotation Undefined of undefined"),
        (undecodable, "for undecodable"),
        (without_parameters, "without_parameters needs a positional parameter"),
        (by_keyword, "by_keyword needs a positional parameter"),
        (b"work", "a worker is a function"),
    ],
)
def test_what_cannot_take_a_message_is_refused(function: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        goq.WorkerApp().worker("orders", group="g")(function)
