"""Requests at their bounds share the event loop: long work is done in many short steps.

No test can tell how long a step takes. So each slice is made to end at once, and the steps of a
request are counted: as many as its units of work, or as the chunks of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any, NamedTuple

import pytest

from goq import clock, limits
from goq.api.codec import publish_request
from goq.api.routes import trace
from goq.api.views.health import LOOK_STEP
from goq.broker.events.writer import EventWriter
from goq.broker.partition import timers
from goq.broker.partition.ready_state import ready_state
from goq.broker.partition.ready_state.ready_state import ReadyState
from goq.broker.partition.timers import Timers
from goq.broker.runtime.disposal import Container, dispose
from goq.broker.topic import settler
from goq.clock import TimeSlice
from goq.delivery.events.event import AnyEvent, Matured
from goq.http.loop_watch import LoopWatch
from goq.http.message import Request
from tests.support.api.calls import publish, receive, settle
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode

UNITS = 400
CHUNK = 50


class Asked(NamedTuple):
    """A request that does ``UNITS`` units of work."""

    path: str
    body: Any = None


class Case(NamedTuple):
    prepare: Callable[[RunningNode, str], Asked]
    steps: int


def _filled(node: RunningNode, topic: str, **fields: Any) -> None:
    publish(node, topic, *(f"v{n}" for n in range(UNITS)), partition=0, **fields)


def _mixed(node: RunningNode, topic: str) -> None:
    """Publish messages whose lanes alternate: each is a run of its own."""
    messages = [
        {"value": f"v{n}", "partition": 0, "priority": ("high", "low")[n % 2], "tenant": f"t{n}"}
        for n in range(UNITS)
    ]
    node.call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})


def _with_topics(node: RunningNode, topic: str) -> Asked:
    for number in range(2 * LOOK_STEP):
        node.call("POST", "/v1/topics", {"name": f"{topic}-{number}", "partitions": 1})
    return Asked("/healthz")


def _publishing(_node: RunningNode, topic: str) -> Asked:
    messages = [{"value": "v", "headers": {"a": "b"}}] * UNITS
    return Asked(f"/v1/topics/{topic}/messages", {"messages": messages})


def _reading(node: RunningNode, topic: str) -> Asked:
    _filled(node, topic)
    return Asked(f"/v1/topics/{topic}/messages?partition=0&limit={UNITS}")


def _receiving(node: RunningNode, topic: str) -> Asked:
    _mixed(node, topic)
    return Asked(f"/v1/topics/{topic}/groups/g/receive", {"max_messages": UNITS})


def _settling(verb: str) -> Callable[[RunningNode, str], Asked]:
    def prepare(node: RunningNode, topic: str) -> Asked:
        _mixed(node, topic)
        receipts = [found["receipt"] for found in receive(node, topic, max_messages=UNITS)]
        return Asked(f"/v1/topics/{topic}/groups/g/{verb}", {"receipts": receipts})

    return prepare


def _peeking(node: RunningNode, topic: str) -> Asked:
    _filled(node, topic)
    receive(node, topic, max_messages=1)
    return Asked(f"/v1/topics/{topic}/groups/g/peek?limit={UNITS}")


def _scheduled(node: RunningNode, topic: str) -> Asked:
    _filled(node, topic, delay="1h")
    return Asked(f"/v1/topics/{topic}/scheduled?limit={UNITS}")


def _events(node: RunningNode, topic: str) -> Asked:
    _filled(node, topic)
    for found in receive(node, topic, max_messages=CHUNK):
        settle(node, topic, "ack", found["receipt"])
    return Asked(f"/v1/topics/{topic}/events?partition=0")


def _groups(node: RunningNode, topic: str) -> None:
    for number in range(CHUNK):
        receive(node, topic, f"g{number}")


def _listing_groups(node: RunningNode, topic: str) -> Asked:
    _groups(node, topic)
    return Asked(f"/v1/topics/{topic}/groups")


def _metrics(node: RunningNode, topic: str) -> Asked:
    _groups(node, topic)
    return Asked("/metrics")


def _topics(node: RunningNode, topic: str) -> Asked:
    for number in range(10):
        node.call("POST", "/v1/topics", {"name": f"{topic}-{number}", "partitions": 1})
    return Asked("/v1/topics")


def _showing(node: RunningNode, topic: str) -> Asked:
    node.call("POST", "/v1/topics", {"name": f"{topic}-wide", "partitions": CHUNK})
    return Asked(f"/v1/topics/{topic}-wide")


def _members(node: RunningNode, topic: str) -> Asked:
    node.call("PATCH", f"/v1/topics/{topic}", {"settings": {"delivery.ordering": "partition"}})
    path = f"/v1/topics/{topic}/groups/g/members"
    for number in range(CHUNK):
        node.call("POST", path, {"consumer": f"m{number:02}"})
    return Asked(path)


def _schedules(node: RunningNode, topic: str) -> Asked:
    schedule = {"topic": topic, "every": "1d", "messages": [{"value": "v"}]}
    for number in range(10):
        node.call("PUT", f"/v1/schedules/s-{number}", schedule)
    return Asked("/v1/schedules")


def _live(node: RunningNode, topic: str) -> Asked:
    _topics(node, topic)
    return Asked("/v1/live?limit=1")


_TOPIC = "/v1/topics/{topic}"
_GROUP = _TOPIC + "/groups/{group}"
SLICED = {
    ("GET", "/healthz"): Case(_with_topics, 2),
    ("POST", f"{_TOPIC}/messages"): Case(_publishing, 4 * UNITS - 4),  # read, placed, answered
    ("GET", f"{_TOPIC}/messages"): Case(_reading, UNITS - 1),
    ("POST", f"{_GROUP}/receive"): Case(_receiving, UNITS // 16 + UNITS // CHUNK),
    **{
        ("POST", f"{_GROUP}/{verb}"): Case(_settling(verb), UNITS // CHUNK // 2)
        for verb in ("ack", "reject", "extend")
    },
    **{
        ("POST", f"{_GROUP}/{verb}"): Case(_settling(verb), UNITS // 5)
        for verb in ("nack", "release")
    },
    ("GET", f"{_GROUP}/peek"): Case(_peeking, UNITS - 1),
    ("GET", f"{_TOPIC}/scheduled"): Case(_scheduled, UNITS),
    ("GET", f"{_TOPIC}/events"): Case(_events, CHUNK),
    ("GET", f"{_TOPIC}/groups"): Case(_listing_groups, CHUNK),
    ("GET", "/metrics"): Case(_metrics, CHUNK),
    ("GET", "/v1/topics"): Case(_topics, 10),
    ("GET", _TOPIC): Case(_showing, CHUNK - 1),
    ("GET", f"{_GROUP}/members"): Case(_members, CHUNK - 1),
    ("GET", "/v1/schedules"): Case(_schedules, 10),
    ("GET", "/v1/live"): Case(_live, 10),
}
IN_THREADS = {
    ("GET", f"{_TOPIC}/dead"),
    ("DELETE", f"{_TOPIC}/dead"),
    ("POST", f"{_TOPIC}/redrive"),
    ("GET", f"{_TOPIC}/trace"),
    ("GET", f"{_TOPIC}/search"),
    ("GET", f"{_TOPIC}/history"),
    ("GET", "/v1/messages/{id}/trace"),
}
"""Routes that read the log in threads, a bounded piece at a time."""
SMALL = {
    ("POST", f"{_TOPIC}/partitions/{{partition}}/reopen"),
    ("POST", "/v1/topics"),
    *((method, _TOPIC) for method in ("PUT", "PATCH", "DELETE")),
    *((method, "/v1/messages/{id}") for method in ("GET", "PATCH", "DELETE")),
    *((method, f"{_GROUP}/streams/{{stream}}") for method in ("PATCH", "DELETE")),
    *((method, _GROUP) for method in ("GET", "PUT", "DELETE")),
    ("POST", f"{_GROUP}/reset"),
    ("GET", f"{_TOPIC}/producers/{{producer_id}}"),
    ("POST", f"{_GROUP}/members"),
    ("POST", f"{_GROUP}/members/{{consumer}}/heartbeat"),
    ("DELETE", f"{_GROUP}/members/{{consumer}}"),
    ("GET", "/v1/cluster"),
    ("POST", "/v1/cluster/nodes"),
    ("DELETE", "/v1/cluster/nodes/{node}"),
    ("POST", "/v1/cluster/rebalance"),
    ("POST", "/v1/cluster/moves"),
    ("DELETE", "/v1/cluster/moves/{topic}/{partition}"),
    ("POST", "/v1/cluster/elections"),
    ("PATCH", "/v1/cluster/settings"),
    ("GET", "/v1/tokens"),
    ("POST", "/v1/tokens"),
    ("POST", "/v1/tokens/{token}/rotate"),
    ("DELETE", "/v1/tokens/{token}"),
    ("GET", "/v1/audit"),
    *((method, "/v1/schedules/{schedule}") for method in ("GET", "PUT", "DELETE")),
    *(("POST", f"/v1/schedules/{{schedule}}/{verb}") for verb in ("pause", "resume")),
    *((method, f"/v1/{what}") for method in ("GET", "POST") for what in ("backups", "restores")),
    ("GET", "/v1/whoami"),
    *(("GET", path) for path in ("/livez", "/readyz", "/version")),
    *(("GET", path) for path in ("/openapi.json", "/docs")),
}
"""Routes about one topic, group, message or node."""


@contextmanager
def counted_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Count the steps of requests by their route, each slice ending at once."""
    found: list[str] = []

    def note(_watch: LoopWatch, request: Request, _started_s: float) -> None:
        found.append(request.route)

    with monkeypatch.context() as patched:
        patched.setattr(LoopWatch, "end_step", note)
        patched.setattr(clock, "SLICE_S", 0.0)
        patched.setattr(limits, "SELECTION_STEPS_MAX", CHUNK)
        patched.setattr(settler, "_SETTLED_AT_ONCE", CHUNK)
        yield found


def test_each_route_of_the_table_is_sliced_or_works_in_threads_or_is_small(
    node: RunningNode,
) -> None:
    assert node.node.app is not None
    table = {(route.method, route.path) for route in node.node.app.router.routes}
    assert table == {*SLICED, *IN_THREADS, *SMALL}
    assert not ({*SLICED} & {*IN_THREADS, *SMALL}) | (IN_THREADS & SMALL)


@pytest.mark.parametrize("route", SLICED, ids=" ".join)
def test_a_large_request_gives_others_a_turn_many_times(
    node: RunningNode, topic: str, route: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = SLICED[route]
    asked = case.prepare(node, topic)
    with counted_steps(monkeypatch) as steps:
        assert node.request(route[0], asked.path, asked.body).status == 200
    assert steps.count(route[1]) > case.steps


def test_a_receive_in_turns_gets_all_it_asked_for(
    node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _mixed(node, topic)
    with counted_steps(monkeypatch):
        found = receive(node, topic, max_messages=UNITS)
    assert sorted(message["offset"] for message in found) == list(range(UNITS))
    done = settle(node, topic, "ack", *(message["receipt"] for message in found))
    assert done == {"settled": UNITS, "failed": []}


class _Steps:
    """A slice of time that is over after so many steps."""

    steps_max = 1

    def __init__(self) -> None:
        self._steps = 0

    @property
    def is_over(self) -> bool:
        self._steps += 1
        return self._steps >= self.steps_max


@pytest.mark.parametrize("steps_max", [1, 3])
def test_many_messages_due_at_once_mature_in_turns_of_the_event_loop(
    node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch, steps_max: int
) -> None:
    turns: list[int] = []
    recorded: list[Matured] = []
    on_time, mature, record = Timers._on_time, ReadyState.mature, EventWriter.record_later

    def counting_turns(each: Timers) -> None:
        turns.append(0)
        on_time(each)

    def counting(ready: ReadyState, now_ms: int) -> Matured | None:
        event = mature(ready, now_ms)
        turns[-1] += event is not None
        return event

    def recording(writer: EventWriter, event: AnyEvent) -> None:
        if isinstance(event, Matured):
            recorded.append(event)
        record(writer, event)

    monkeypatch.setattr(ready_state, "_MATURED_AT_ONCE", CHUNK)
    monkeypatch.setattr(_Steps, "steps_max", steps_max)
    monkeypatch.setattr(timers, "TimeSlice", _Steps)
    monkeypatch.setattr(Timers, "_on_time", counting_turns)
    monkeypatch.setattr(ReadyState, "mature", counting)
    monkeypatch.setattr(EventWriter, "record_later", recording)
    due_ms = node.clock.wall_ms() + 700
    _filled(node, topic, deliver_at=due_ms)
    found: list[str] = []
    while len(found) < UNITS:
        got = receive(node, topic, wait="20s")
        found += [message["value"] for message in got]
        settle(node, topic, "ack", *(message["receipt"] for message in got))
    assert found == [f"v{n}" for n in range(UNITS)]
    assert max(turns) == steps_max
    assert sum(turns) >= UNITS // CHUNK
    assert len(recorded) == sum(count > 0 for count in turns)
    assert recorded[-1].end_offset == UNITS


class _Pause:
    """Stops requests at the end of their first slice until :meth:`go_on`."""

    def __init__(self, node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self._node = node
        self._go_on: asyncio.Future[None] = node.on_loop(_future)
        monkeypatch.setattr(clock, "SLICE_S", 0.0)
        monkeypatch.setattr(TimeSlice, "next", self._next)

    async def _next(self) -> None:
        self.reached.set()
        await asyncio.shield(self._go_on)

    def go_on(self) -> None:
        self._node.on_loop(lambda: self._go_on.set_result(None))


async def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def _leased(node: RunningNode, topic: str) -> int:
    broker = node.node.broker
    assert broker is not None
    partition = broker.topics[topic].partitions[0]
    return node.on_loop(lambda: partition.group("g").leased_count)


@pytest.mark.parametrize("accept", ["application/json", "application/vnd.goq.frames"])
def test_a_client_that_leaves_while_its_answer_is_made_holds_no_lease(
    node: RunningNode, topic: str, accept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _mixed(node, topic)
    pause = _Pause(node, monkeypatch)
    client = HTTPConnection(*node.address, timeout=30)
    path = f"/v1/topics/{topic}/groups/g/receive"
    headers = {"Content-Type": "application/json", "Accept": accept}
    client.request("POST", path, b'{"max_messages": %d}' % UNITS, headers)
    assert pause.reached.wait(30)
    assert _leased(node, topic) == UNITS
    client.close()
    eventually(lambda: _leased(node, topic) == 0)
    pause.go_on()
    found = receive(node, topic, max_messages=UNITS)
    assert {message["attempt"] for message in found} == {1}
    assert len(found) == UNITS


@pytest.mark.parametrize(
    "route", ["messages?partition=0&limit=400", "scheduled", "events?partition=0"]
)
def test_a_topic_that_is_deleted_while_it_is_read_still_gives_what_was_read(
    node: RunningNode, topic: str, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(node, topic, "now", partition=0)
    publish(node, topic, *("later" for _ in range(20)), partition=0, delay="1h")
    receive(node, topic)
    pause = _Pause(node, monkeypatch)
    statuses: list[int] = []
    path = f"/v1/topics/{topic}/{route}"
    thread = threading.Thread(target=lambda: statuses.append(node.request("GET", path).status))
    thread.start()
    assert pause.reached.wait(30)
    node.call("DELETE", f"/v1/topics/{topic}")
    pause.go_on()
    thread.join(30)
    assert statuses[0] in (200, 404, 503), statuses


def test_a_list_of_members_is_of_one_moment(
    node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _members(node, topic).path
    answers = [node.call("GET", path)]
    pause = _Pause(node, monkeypatch)
    thread = threading.Thread(target=lambda: answers.append(node.call("GET", path)))
    thread.start()
    assert pause.reached.wait(30)
    for consumer in ("m00", "m01", "m02"):
        node.call("DELETE", f"{path}/{consumer}")
    pause.go_on()
    thread.join(30)
    answers.append(node.call("GET", path))
    before, paused, after = ((a["generation"], _owners(a), len(a["history"])) for a in answers)
    assert before == paused != after


def _owners(answer: Any) -> list[tuple[str, list[int]]]:
    """Return members with their partitions; times depend on when two clocks are read."""
    return [(member["consumer"], member["partitions"]) for member in answer["members"]]


def test_a_publish_whose_topic_is_deleted_meanwhile_is_refused(
    node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = _Pause(node, monkeypatch)
    statuses: list[int] = []
    body = {"messages": [{"value": "v"}] * 2}
    path = f"/v1/topics/{topic}/messages"
    thread = threading.Thread(
        target=lambda: statuses.append(node.request("POST", path, body).status)
    )
    thread.start()
    assert pause.reached.wait(30)
    node.call("DELETE", f"/v1/topics/{topic}")
    pause.go_on()
    thread.join(30)
    assert statuses[0] >= 400, statuses


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of objects that requests have had freed in turns of the event loop."""
    found: list[int] = []

    async def noting(containers: list[Container]) -> None:
        found.append(sum(map(len, containers)))
        await dispose(containers)

    monkeypatch.setattr(publish_request, "dispose", noting)
    monkeypatch.setattr(trace, "dispose", noting)
    return found


def test_what_a_refused_publish_has_made_is_freed_in_turns(
    node: RunningNode, topic: str, freed: list[int]
) -> None:
    messages = [{"value": "v"}] * UNITS + [{"value": "v", "priority": "unknown"}]
    path = f"/v1/topics/{topic}/messages"
    assert node.request("POST", path, {"messages": messages}).status == 400
    assert freed == [UNITS]
    assert node.request("POST", path, {"messages": messages[:-1]}).status == 200
    assert freed == [UNITS]


def test_the_steps_of_a_trace_are_freed_in_turns(
    node: RunningNode, topic: str, freed: list[int]
) -> None:
    _filled(node, topic)
    _groups(node, topic)
    told = node.call("GET", f"/v1/messages/{topic}:0:0/trace")
    steps = len(told["events"])
    assert steps == 1 + CHUNK
    assert freed == [2 * steps + CHUNK]  # as told, as read, and by group
