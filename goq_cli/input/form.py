"""The form of the input: how a piece of it becomes messages, with the options of all messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from goq import limits
from goq.errors import InvalidInput
from goq.model import Header, Message, check_message

if TYPE_CHECKING:
    from goq.client import Producer
    from goq.client.delivery_options import DeliveryOptions


@dataclass(frozen=True, slots=True)
class Form:
    """The form of the input, and the options of its messages."""

    delimiter: bytes
    jsonl: bool
    whole: bool
    key: bytes | None
    key_separator: bytes | None
    headers: tuple[Header, ...]
    delivery: DeliveryOptions

    @property
    def is_plain(self) -> bool:
        """Whether messages have values only."""
        return not (
            self.jsonl
            or self.headers
            or self.key is not None
            or self.key_separator
            or any(option is not None for option in self.delivery)
        )

    def messages(self, piece: bytes, where: str, producer: Producer) -> list[Message]:
        """Return the messages of one piece of input, all or none.

        Raises ``InvalidInput`` naming the place ``where``.
        """
        try:
            return [producer.apply(*parsed) for parsed in self._parsed(piece, where)]
        except InvalidInput as error:
            if error.detail.startswith(where):
                raise
            raise type(error)(f"{where}: {error.detail}", field=error.field) from None

    def _parsed(self, piece: bytes, where: str) -> list[tuple[Message, DeliveryOptions]]:
        if self.jsonl:
            return self._parsed_json(piece, where) if piece.strip() else []
        if self.key_separator is None:
            return [(Message(piece, self.key, self.headers), self.delivery)]
        key, separator, value = piece.partition(self.key_separator)
        if not separator:
            raise InvalidInput(
                f"{where}: no {self.key_separator.decode(errors='replace')!r}"
                " to tell the key from the value; the lines before it are stored"
            )
        message = Message(value, key, self.headers)
        if len(key) > limits.KEY_BYTES_MAX:  # nothing else can be over a limit in this line alone
            check_message(message, field="message")
        return [(message, self.delivery)]

    def _parsed_json(self, piece: bytes, where: str) -> list[tuple[Message, DeliveryOptions]]:
        from goq_cli.input.jsonl import parse_messages

        found: list[tuple[Message, DeliveryOptions]] = []
        for parsed, options in parse_messages(piece, where):
            key = parsed.key if self.key is None else self.key
            message = Message(parsed.value, key, (*self.headers, *parsed.headers))
            check_message(message, field="message")
            found.append((message, _overridden(options, self.delivery)))
        return found


def _overridden(options: DeliveryOptions, given: DeliveryOptions) -> DeliveryOptions:
    """Return the options of a line, overridden by those of the command line."""
    if given.delay is not None or given.deliver_at is not None:
        options = options._replace(delay=None, deliver_at=None)
    said = {name: value for name, value in given._asdict().items() if value is not None}
    return options._replace(**said)
