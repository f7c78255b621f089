"""Answers of a node become typed values; what a newer node adds does no harm."""

from __future__ import annotations

import importlib
import pkgutil
from datetime import UTC, datetime
from typing import Any

import pytest

import goq.client
from goq.client import results
from goq.client.results.dead_letter import decode_dead_letter_page
from goq.client.results.group import decode_group, decode_membership
from goq.client.results.message import decode_message
from goq.client.results.result import Result
from goq.client.results.topic import decode_topic, decode_topics
from goq.errors import GoqError
from goq.model import MessageId

PARTITION = {
    "partition": 0,
    "leader": None,
    "start_offset": 1,
    "end_offset": 3,
    "high_watermark": 3,
    "bytes": 99,
}
TOPIC: dict[str, Any] = {"name": "t", "partitions": [PARTITION], "settings": {"fsync": "always"}}
MESSAGE: dict[str, Any] = {"id": "a.b:1:2", "partition": 1, "offset": 2}
TIME = "2026-01-02T03:04:05.000006Z"
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)


def test_fields_that_are_not_known_are_only_in_what_the_node_sent() -> None:
    newer = {**TOPIC, "colour": "blue", "partitions": [{**PARTITION, "weight": 1}], "time": TIME}
    topic = decode_topic(newer)
    assert topic.raw == newer
    assert (topic.time, topic.partitions[0].end_offset, topic.archived) == (MOMENT, 3, None)
    assert topic == decode_topic({**TOPIC, "time": TIME})


def test_values_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        decode_topic(TOPIC).name = "other"


@pytest.mark.parametrize(
    "answer",
    [None, [], {}, {**TOPIC, "name": 1}, {**TOPIC, "partitions": [{}]}, {**TOPIC, "time": "soon"}],
)
def test_an_answer_of_another_shape_is_named(answer: object) -> None:
    with pytest.raises(GoqError, match="is it a goq node"):
        decode_topic(answer)


@pytest.mark.parametrize("answer", [{}, {"id": "x"}, {**MESSAGE, "value_base64": "?x"}])
def test_what_is_no_message_is_named(answer: object) -> None:
    with pytest.raises(GoqError):
        decode_message(answer)


def test_a_list_that_is_missing_is_named() -> None:
    with pytest.raises(GoqError, match="no list topics"):
        decode_topics({})


def test_bytes_come_as_text_or_base64_and_headers_in_two_forms() -> None:
    plain = decode_message({**MESSAGE, "value": "ä", "key_base64": "/w==", "headers": {"a": "b"}})
    assert (plain.id, plain.value) == (MessageId("a.b", 1, 2), "ä".encode())
    assert (plain.key, plain.headers) == (b"\xff", (("a", b"b"),))
    listed = [{"name": "a", "value": "b"}, {"name": "a", "value_base64": "/w=="}]
    assert decode_message({**MESSAGE, "headers": listed}).headers == (("a", b"b"), ("a", b"\xff"))
    assert decode_message({**MESSAGE, "value": None}).value is None


def test_a_dead_letter_names_the_message_that_it_was() -> None:
    failure = {"time": TIME, "cause": "nacked"}
    letter = {**MESSAGE, "origin": "t:0:7", "died_at": TIME, "failures": [failure]}
    [found] = decode_dead_letter_page({"messages": [letter], "next": "x"}).messages
    assert (found.origin, found.died_at, found.redrives) == (MessageId("t", 0, 7), MOMENT, 0)
    assert (found.failures[0].cause, found.raw) == ("nacked", letter)


def test_names_that_python_reserves_are_others() -> None:
    move = {"partition": 3, "from": "a", "to": None, "paused_ms": None}
    found = decode_membership({"generation": 1, "members": [], "moving": [move], "history": []})
    assert (found.moving[0].source, found.moving[0].target) == ("a", None)
    counts = dict.fromkeys(("lag", "ready", "leased", "retry", "blocked", "scheduled", "dead"), 0)
    gap = {"partition": 0, "reason": "deleted", "from": TIME}
    group = decode_group({"group": "g", **counts, "incomplete": [gap]})
    assert group.incomplete[0].from_time == MOMENT


def test_every_result_is_public() -> None:
    for module in pkgutil.iter_modules(results.__path__, f"{results.__name__}."):
        importlib.import_module(module.name)
    names = {kind.__name__ for kind in _subclasses(Result)}
    assert names <= set(goq.client.__all__)
    assert all("__dict__" not in dir(getattr(goq.client, name)) for name in names)


def _subclasses(kind: type[Any]) -> set[type[Any]]:
    found = set(kind.__subclasses__())
    return found.union(*map(_subclasses, found))
