"""The answer to a single message or frame is the same bytes as the answer made of its parts."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq.api.codec.publish_answer import PublishAnswer, answer_tail
from goq.api.schemas.messages import PublishedOut, PublishOut
from goq.broker.log.pending_appends import Appended
from goq.config.topic import Fsync
from goq.errors import StorageFull
from goq.http.message import Response
from goq.units import format_time_us

TOPICS = st.from_regex(r"[a-z][a-z0-9._-]{0,20}", fullmatch=True)
TIMES_US = st.integers(0, 253_402_300_799_999_999)
NUMBERS = st.integers(0, 2**63 - 1)


COUNTS = st.none() | st.integers(1, 65_535)


@given(TOPICS, st.integers(0, 9999), NUMBERS, TIMES_US, st.sampled_from(Fsync), COUNTS)
def test_it_is_the_encoded_answer(
    topic: str, partition: int, offset: int, time_us: int, fsync: Fsync, count: int | None
) -> None:
    answer, given_answers = PublishAnswer(topic, answer_tail(fsync, 6), count=count), []
    answer.partition = partition
    answer.then(lambda response, _error: given_answers.append(response))
    assert not answer.done()
    answer.set_result(Appended(offset, time_us))
    assert answer.done()
    result = PublishedOut(partition, offset, format_time_us(time_us))
    if count is not None:
        result.count, result.duplicate = count, False
    else:
        result.id = f"{topic}:{partition}:{offset}"
    (response,) = given_answers
    assert isinstance(response, Response)
    assert response.status == 200
    assert response.content_type == "application/json"
    assert response.body == msgspec.json.encode(PublishOut([result], fsync, 6))


@pytest.mark.parametrize(
    ("appended", "duplicate"),
    [
        (Appended(7, 1_000_000, duplicate=True), True),
        (Appended(7, 1_000_000, duplicate=True, left_out=[(1, 3, 4)]), True),
        (Appended(7, 1_000_000, left_out=[(0, 3, 4), (2, 5, 6)]), False),
    ],
)
def test_the_answer_to_a_frame_tells_what_was_stored_before(
    appended: Appended, duplicate: bool
) -> None:
    answer, given_answers = PublishAnswer("orders", answer_tail("always", 6), count=3), []
    answer.partition = 2
    answer.then(lambda response, _error: given_answers.append(response))
    answer.set_result(appended)
    result = PublishedOut(2, 7, format_time_us(1_000_000), count=3, duplicate=duplicate)
    result.duplicates = list(appended.left_out)
    assert given_answers[0].body == msgspec.json.encode(PublishOut([result], "always", 6))


def test_an_error_of_the_append_is_its_answer() -> None:
    answer, given_errors = PublishAnswer("orders", answer_tail("always", 1)), []
    answer.then(lambda _response, error: given_errors.append(error))
    error = StorageFull("the disk is full")
    answer.set_exception(error)
    assert answer.done()
    assert given_errors == [error]
