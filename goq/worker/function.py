"""A worker's function with its options, checked when it is decorated.

The annotation of its first parameter says what it gets. A generator function is refused: to call it
runs nothing of it.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from goq.client._sync.consume.received_message import ReceivedMessage
from goq.client.arguments import Duration
from goq.errors import InvalidInput, UsageError
from goq.model import check_name
from goq.units import parse_duration_ms

Parse = Callable[[ReceivedMessage], object]
ErrorTypes = type[BaseException] | Sequence[type[BaseException]]


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of a worker. Raises ``InvalidInput``, which names the argument."""

    topics: Sequence[str]
    group: str
    concurrency: int
    visibility: Duration | None
    retry: Duration | None
    reject_on: tuple[type[BaseException], ...]

    def __post_init__(self) -> None:
        if not self.topics or not all(isinstance(topic, str) for topic in self.topics):
            raise InvalidInput("topics are one name or several", field="topics")
        check_name(self.group, "group", field="group")
        if type(self.concurrency) is not int or self.concurrency < 1:
            raise InvalidInput(
                f"concurrency is 1 or more, not {self.concurrency!r:.100}", field="concurrency"
            )
        for field in ("visibility", "retry"):
            try:
                if (duration := getattr(self, field)) is not None:
                    parse_duration_ms(duration)
            except InvalidInput as error:
                raise InvalidInput(f"{field}: {error.detail}", field=field) from None
        for kind in self.reject_on:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise InvalidInput(
                    f"reject_on is one class of errors or several, not {kind!r:.100}",
                    field="reject_on",
                )


class WorkerFunction:
    """A function with its options. Raises ``UsageError`` if it cannot handle messages."""

    def __init__(self, function: Callable[..., object], options: WorkerOptions) -> None:
        self.options = options
        self.name = _name_of(function)
        self._function = function
        _check_runs(function, self.name)
        parameters = _parameters(function, self.name)
        self._takes_message = any(parameter.name == "message" for parameter in parameters[1:])
        self.parse = _parser(_first_type(function, parameters[0], self.name), self.name)

    def call(self, payload: object, message: ReceivedMessage) -> object:
        """Call the function; what it returns may be awaitable."""
        if self._takes_message:
            return self._function(payload, message=message)
        return self._function(payload)


def _name_of(function: object) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__


def _layers(function: object) -> list[object]:
    """Return a function and what partials, callable objects and decorators call below it."""
    layers = [function]
    while True:
        below: object = None
        if isinstance(function, partial):
            below = function.func
        elif hasattr(function, "__wrapped__"):
            below = function.__wrapped__
        elif callable(function) and not (inspect.isroutine(function) or inspect.isclass(function)):
            below = type(function).__call__
        if below is None or any(below is layer for layer in layers):
            return layers
        layers.append(below)
        function = below


def _check_runs(function: object, name: str) -> None:
    if not callable(function):
        raise UsageError(f"a worker is a function, not {function!r:.100}")
    for layer in _layers(function):
        if inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer):
            raise UsageError(f"{name} is a generator function: a call would run nothing of it")


def _parameters(function: Callable[..., object], name: str) -> list[inspect.Parameter]:
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError) as error:
        raise UsageError(f"the parameters of {name} cannot be read: {error}") from error
    if not parameters or parameters[0].kind in (
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    ):
        raise UsageError(f"{name} needs a positional parameter for the message")
    return parameters


def _first_type(function: object, first: inspect.Parameter, name: str) -> Any:
    """Return the annotation of the first parameter, by default the message."""
    if first.annotation is inspect.Parameter.empty:
        return ReceivedMessage
    try:
        return typing.get_type_hints(_layers(function)[-1])[first.name]
    except Exception as error:
        if not isinstance(first.annotation, str):
            return first.annotation
        raise UsageError(f"the annotation {first.annotation} of {name}: {error}") from error


def _parser(kind: Any, name: str) -> Parse:
    if kind is ReceivedMessage or kind is Any:
        return lambda message: message
    if kind is bytes:
        return lambda message: message.value or b""
    if kind is str:
        return lambda message: (message.value or b"").decode()
    if hasattr(kind, "model_validate_json"):  # a model of pydantic
        return lambda message: kind.model_validate_json(message.value or b"")
    try:
        decoder = msgspec.json.Decoder(kind)
    except TypeError as error:
        raise UsageError(f"msgspec does not decode {kind!r:.100} for {name}: {error}") from error
    return lambda message: decoder.decode(message.value or b"")
