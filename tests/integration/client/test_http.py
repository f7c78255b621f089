from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from goq import __version__
from goq.client import AsyncClient, Client
from goq.client._sync.publish.frame_publisher import post_frames
from goq.client.protocol import routes
from goq.errors import (
    BY_CODE,
    Conflict,
    GoqError,
    InvalidInput,
    NotAllowed,
    NotFound,
    StorageFull,
    TimedOut,
    TooManyRequests,
    Unavailable,
)
from tests.support.client.fake_node import FakeNode, Refused
from tests.support.client.scripted_server import ScriptedServer, ok


def problem(status: int, **fields: object) -> bytes:
    body = json.dumps(fields).encode()
    return b"HTTP/1.1 %d Oops\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


COUNTS = dict.fromkeys(("lag", "ready", "leased", "retry", "blocked", "scheduled", "dead"), 0)
TOPIC = {"name": "t", "partitions": [], "settings": {}}
GROUP = {"group": "g", **COUNTS, "members": [], "partitions": []}
RESET = {"group": "g", "dry_run": True, "partitions": []}
MESSAGE = {"id": "t:0:1", "partition": 0, "offset": 1, "groups": []}
PAGE = {"messages": [MESSAGE], "next": None}


def test_every_code_comes_back_as_its_error() -> None:
    codes = [code for code, kind in BY_CODE.items() if not kind.retryable]
    with ScriptedServer([[problem(418, code=code, detail="why")] for code in codes]) as server:
        client = Client(server.url)
        for code in codes:
            with pytest.raises(BY_CODE[code]) as raised:
                client.get_version()
            assert type(raised.value) is BY_CODE[code]
            assert str(raised.value) == "why"
        client.close()


def test_an_answer_without_a_problem_is_judged_by_its_status() -> None:
    plain = b"HTTP/1.1 403 No\r\nContent-Length: 6\r\n\r\n<html>"
    with ScriptedServer([[plain], [ok(b"<html>")]]) as server, Client(server.url) as client:
        with pytest.raises(NotAllowed, match="status 403: <html>"):
            client.get_version()
        with pytest.raises(GoqError, match="is it a goq node"):
            client.get_version()


def test_a_missing_node_is_named_with_what_to_do() -> None:
    with ScriptedServer() as server:
        url = server.url
    advice = rf"{url}.*start one with: goq serve"
    with Client(url, retries="10ms") as client, pytest.raises(Unavailable, match=advice):
        client.list_topics()


def test_a_silent_node_is_a_time_out() -> None:
    with (
        ScriptedServer([[]]) as server,
        Client(server.url, timeout="30ms", retries=0) as client,
        pytest.raises(TimedOut, match="may still have been done"),
    ):
        client.list_topics()


def test_retryable_answers_are_tried_again_and_others_are_not() -> None:
    busy = problem(503, code="partition_offline", detail="not now")
    full = problem(507, code="storage_full", detail="no room")
    script = [[busy], [full], [ok(json.dumps(TOPIC).encode())]]
    with ScriptedServer(script) as server, Client(server.url) as client:
        assert client.create_topic("orders").raw == TOPIC
    with ScriptedServer([[problem(409, code="topic_exists")]]) as server:
        with Client(server.url) as client, pytest.raises(BY_CODE["topic_exists"]):
            client.create_topic("orders")
        assert len(server.requests) == 1


def test_what_may_have_been_done_is_not_done_twice() -> None:
    late = problem(504, code="timed_out")
    with ScriptedServer([[late]], [[ok()]]) as server, Client(server.url) as client:
        with pytest.raises(TimedOut):
            client.create_topic("orders")
        assert len(server.requests) == 1
    with ScriptedServer([[None]], [[ok()]]) as server, Client(server.url) as client:
        with pytest.raises(Unavailable):
            client.delete_topic("orders")
        assert len(server.requests) == 1


def test_the_last_error_is_raised_when_the_time_is_over() -> None:
    full = problem(507, code="storage_full", detail="no room", retry_after_ms=60_000)
    with ScriptedServer([[full]]) as server, Client(server.url, retries="1s") as client:
        with pytest.raises(StorageFull) as raised:
            client.list_topics()
        assert raised.value.retry_after_ms == 60_000
        assert len(server.requests) == 1


def test_retry_after_counts_where_the_problem_says_nothing() -> None:
    busy = b"HTTP/1.1 429 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"
    with ScriptedServer([[busy]]) as server, Client(server.url, retries="1s") as client:
        with pytest.raises(Unavailable) as raised:
            client.list_topics()
        assert raised.value.retry_after_ms == 7000


def test_a_pause_of_any_length_is_the_error_that_the_server_gave() -> None:
    header = b"HTTP/1.1 429 Busy\r\nRetry-After: %b\r\nContent-Length: 0\r\n\r\n"
    body = b'{"code":"too_many_requests","detail":"busy","retry_after_ms":%b}' % (b"9" * 400)
    head = b"HTTP/1.1 429 Busy\r\nContent-Length: %d\r\n\r\n" % len(body)
    for answer in (header % (b"9" * 400), header % (b"9" * 5000), head + body):
        with ScriptedServer([[answer]]) as server, Client(server.url, retries="1s") as client:
            with pytest.raises(TooManyRequests):
                client.list_topics()
            assert len(server.requests) == 1


def test_servers_are_taken_in_turn(node: FakeNode) -> None:
    with ScriptedServer() as gone:
        url = gone.url
    node.create("orders")
    with Client([url, node.url + "/"]) as client:
        assert client.publish("orders", b"").id.offset == 0
        assert client.publish("orders", b"").id.offset == 1

    async def scenario() -> None:
        async with AsyncClient([url, node.url]) as q:
            assert (await q.publish("orders", b"")).id.offset == 2

    asyncio.run(scenario())


def test_requests_say_who_asks(node: FakeNode) -> None:
    with Client(node.url, token="secret") as client:
        client.list_topics()
    assert node.headers[0]["authorization"] == "Bearer secret"
    assert node.headers[0]["user-agent"] == f"goq/{__version__}"
    assert node.headers[0]["host"] in node.url
    with pytest.raises(InvalidInput, match="token"):
        Client(node.url, token="a\r\nb")


def test_a_path_before_the_api_is_kept(node: FakeNode) -> None:
    with Client(node.url + "/goq/") as client:
        assert client.get_version().version == __version__
    assert node.requests == [("GET", "/goq/version")]


@pytest.mark.parametrize(
    "servers", ["localhost", "ftp://x", "http://", "http://x:99999", "http://x:y", []]
)
def test_what_is_no_url_is_refused(servers: str | list[str]) -> None:
    with pytest.raises(InvalidInput):
        Client(servers)


def test_names_cannot_leave_their_place_in_the_path(node: FakeNode, client: Client) -> None:
    for call in (
        lambda: client.describe_topic("a/b"),
        lambda: client.describe_topic("../x"),
        lambda: client.describe_group("orders", "a?b"),
        lambda: client.get_message("orders:1"),
        lambda: client.publish("a b", b""),
    ):
        with pytest.raises(InvalidInput):
            call()
    assert node.requests == []


def test_administrative_calls_go_to_their_routes(node: FakeNode, client: Client) -> None:
    node.create("orders", 2)
    assert [topic.name for topic in client.list_topics()] == ["orders"]
    assert len(client.describe_topic("orders").partitions) == 2
    client.get_message("orders:1:5")
    client.get_health()
    assert [path for _, path in node.requests][-2:] == ["/v1/messages/orders:1:5", "/healthz"]
    first = [TOPIC, TOPIC, {"groups": []}, GROUP, RESET, PAGE, GROUP, PAGE]
    bodies = [json.dumps(answer).encode() for answer in (*first, *[MESSAGE] * 3, {}, {})]
    with ScriptedServer([[ok(body)] for body in bodies]) as server:
        with Client(server.url) as q:
            q.create_topic("t", 3, {"fsync": "never"})
            q.alter_topic("t", settings={"fsync": "always"})
            q.list_groups("t")
            q.describe_group("t", "g")
            q.reset_group("t", "g", to="earliest", dry_run=True)
            q.peek("t", "g", state="dead", limit=5)
            q.set_group_config("t", "g", {"max_attempts": 7})
            q.list_scheduled("t", limit=5, after="1.0.2", until="+1h")
            q.cancel_message("t:0:1", reason="no & more")
            q.set_message_priority("t:0:1", "high")
            q.reschedule_message("t:0:1", "+1h")
            q.delete_group("t", "g")
            q.delete_topic("t")
        lines = [request.split(b" HTTP")[0].decode() for request in server.requests]
        assert lines == [
            "POST /v1/topics",
            "PATCH /v1/topics/t",
            "GET /v1/topics/t/groups",
            "GET /v1/topics/t/groups/g",
            "POST /v1/topics/t/groups/g/reset",
            "GET /v1/topics/t/groups/g/peek?state=dead&limit=5",
            "PUT /v1/topics/t/groups/g",
            "GET /v1/topics/t/scheduled?limit=5&after=1.0.2&until=%2B1h",
            "DELETE /v1/messages/t:0:1?reason=no+%26+more",
            "PATCH /v1/messages/t:0:1",
            "PATCH /v1/messages/t:0:1",
            "DELETE /v1/topics/t/groups/g",
            "DELETE /v1/topics/t",
        ]
        sent = [json.loads(r.partition(b"\r\n\r\n")[2] or b"null") for r in server.requests]
        assert sent[0] == {"name": "t", "partitions": 3, "settings": {"fsync": "never"}}
        assert sent[1] == {"settings": {"fsync": "always"}}
        assert sent[4] == {"to": "earliest", "dry_run": True}
        assert sent[6] == {"settings": {"max_attempts": 7}}
        assert sent[9:11] == [{"priority": "high"}, {"deliver_at": "+1h"}]


CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"


def test_a_stream_gives_its_pieces_as_they_come() -> None:
    with ScriptedServer([[CHUNKS, b"2\r\nde\r\n0\r\n\r\n"]]) as server, Client(server.url) as q:
        stream = q._http.stream("/v1/push", b"{}", accept=routes.FRAMES, wait_ms=0)
        assert b"".join(stream.pieces()) == b"abcde"


def test_a_stream_that_breaks_or_is_refused_raises() -> None:
    refused = problem(404, code="topic_not_found")
    with ScriptedServer([[CHUNKS, None]], [[refused]]) as server:

        async def scenario() -> None:
            async with AsyncClient(server.url) as q:
                stream = await q._http.stream("/v1/push", b"", accept=routes.FRAMES, wait_ms=0)
                pieces = stream.pieces()
                assert await anext(pieces) == b"abc"
                with pytest.raises(Unavailable):
                    await anext(pieces)
                with pytest.raises(BY_CODE["topic_not_found"]):
                    await q._http.stream("/v1/push", b"", accept=routes.FRAMES, wait_ms=0)

        asyncio.run(scenario())


def test_a_refused_publish_is_tried_until_the_node_takes_it(node: FakeNode, client: Client) -> None:
    [partition] = node.create("orders")
    node.refusals.extend([Refused(503, "unavailable"), Refused(429, "too_many_requests")])
    client.publish("orders", b"once")
    assert partition.values() == [b"once"]


NOT_LEADER = problem(421, code="not_leader", detail="another")


def test_a_refusal_after_a_lost_answer_leaves_the_outcome_unknown() -> None:
    with (
        ScriptedServer([[None]], [[NOT_LEADER]] * 50) as server,
        Client(server.url, retries="200ms") as client,
        pytest.raises(TimedOut, match="not known"),
    ):
        client._http.call("PUT", "/v1/topics/t", repeatable=True)
    assert server.connections >= 2


def test_a_write_whose_answer_is_lost_is_not_sent_again_and_said_to_be_unknown() -> None:
    with (
        ScriptedServer([[None]], [[ok()]]) as server,
        Client(server.url) as client,
        pytest.raises(TimedOut, match="may still have been done"),
    ):
        client._http.call("POST", "/v1/topics/t/x", {})
    assert len(server.requests) == 1


def test_any_error_after_a_lost_answer_leaves_a_publish_unknown() -> None:
    gone = problem(404, code="topic_not_found", detail="gone")
    with (
        ScriptedServer([[None]], [[gone]]) as server,
        Client(server.url) as client,
        pytest.raises(TimedOut, match="gone"),
    ):
        post_frames(client._http, "t", [(0, b"frame")])


@pytest.mark.parametrize(
    ("call", "refusal"),
    [
        (lambda c: c.reschedule_message("t:0:0", "+1h"), problem(409, code="conflict")),
        (lambda c: c.set_message_priority("t:0:0", "low"), problem(409, code="conflict")),
        (lambda c: c.revoke_token("ci"), problem(404, code="not_found")),
    ],
)
def test_a_change_that_a_lost_answer_may_have_made_is_not_called_refused(
    call: Callable[[Client], object], refusal: bytes
) -> None:
    with (
        ScriptedServer([[None]], [[refusal]]) as server,
        Client(server.url) as client,
        pytest.raises(TimedOut, match="not known whether this was done"),
    ):
        call(client)
    assert len(server.requests) == 2
    with ScriptedServer([[refusal]]) as server, Client(server.url) as client:
        with pytest.raises((Conflict, NotFound)):
            call(client)
        assert len(server.requests) == 1


def test_a_lost_lease_after_a_lost_answer_may_be_an_acknowledged_message() -> None:
    lost = {"settled": 0, "failed": [{"receipt": "0:1:0", "code": "lease_lost"}]}
    scripts = [[[None]], [[ok(json.dumps(lost).encode())]]]
    with ScriptedServer(*scripts) as server, Client(server.url) as client:
        settled = client.ack("t", "g", ["0:1:0"])
    assert [(f.receipt, f.code) for f in settled.failed] == [("0:1:0", "timed_out")]


def test_receipts_in_doubt_are_settled_again_and_stay_in_doubt() -> None:
    doubt = {"settled": 0, "failed": [{"receipt": "0:1:0", "code": "timed_out"}]}
    lost = {"settled": 0, "failed": [{"receipt": "0:1:0", "code": "lease_lost"}]}
    answers = [[ok(json.dumps(each).encode())] for each in (doubt, lost)]
    with ScriptedServer(answers) as server, Client(server.url) as client:
        settled = client.ack("t", "g", ["0:1:0"])
    assert [(f.receipt, f.code) for f in settled.failed] == [("0:1:0", "timed_out")]
    assert len(server.requests) == 2
