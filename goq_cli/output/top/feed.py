"""The thread of ``goq top`` that asks the node, and keeps its last answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from goq.errors import GoqError
from goq_cli.output.top.rates import GroupRate, Moment, RateMeter
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.client import Client
    from goq.client.results.live import LiveOrder, LiveState

_TOPICS_MAX: Final = 500
_SILENT_S_MAX: Final = 3.0
"""An answer that comes later than this after its time is told to be late."""


@dataclass(frozen=True, slots=True)
class TopAnswer:
    """The last answer: a moment, and the groups of the open topic with lanes and tenants."""

    moment: Moment
    waiting: tuple[GroupRate, ...]
    at_s: float


@dataclass(frozen=True, slots=True)
class TopQuestion:
    """The subject of the screen: an open topic, or the first topics of an order.

    ``search`` is sent only where there are more topics than a screen lists: in what is listed the
    screen itself finds groups, too.
    """

    opened: str | None
    order: LiveOrder
    search: str


class TopFeed(threading.Thread):
    """Asks for a state each interval, for as long as a node takes to come back.

    A state has the first topics of an order, at most so many as a reader looks through.

    ``on_change`` is called in this thread. Attributes are read by others and replaced whole.
    """

    def __init__(
        self, interval_s: float, question: TopQuestion, on_change: Callable[[], None]
    ) -> None:
        super().__init__(name="top", daemon=True)
        self.answer: TopAnswer | None = None
        self.failure: GoqError | None = None
        self._interval_s = interval_s
        self._on_change = on_change
        self._error: str | None = None
        self._question = question
        self._are_many = False
        self._wakes = threading.Event()
        self._is_over = False
        self._servers = " ".join(SESSION.servers_and_token()[0])

    def ask(self, question: TopQuestion) -> None:
        """Ask another question, at once."""
        if question != self._question:
            self._question = question
            self._wakes.set()

    def end(self) -> None:
        """Ask no more."""
        self._is_over = True
        self._wakes.set()

    def trouble(self, now_s: float) -> str | None:
        """Return why the last answer is not current, if it is not."""
        since_s = now_s - self.answer.at_s if self.answer is not None else 0.0
        if self._error is not None:
            return f"{self._servers} is away for {since_s:.0f} s: {self._error}"
        if since_s > self._interval_s + _SILENT_S_MAX:
            return f"{self._servers} has not answered for {since_s:.0f} s"
        return None

    def run(self) -> None:
        """Ask until the end, or an error that does not go by itself."""
        meter, searched = RateMeter(), ""
        try:
            with SESSION.patient_client(self._failed) as client:
                while not self._is_over:
                    self._wakes.clear()
                    asked = self._question
                    search = asked.search if self._are_many else ""
                    if search != searched:
                        meter, searched = RateMeter(), search  # the sums are of other topics
                    state = self._state(client, asked.order, search)
                    waiting: tuple[GroupRate, ...] = ()
                    if asked.opened is not None:
                        opened = client.get_live_state(asked.opened)
                        waiting = tuple(RateMeter().moment(opened).groups)
                        state = _with_topics(state, opened)
                    moment = meter.moment(state)
                    self.answer = TopAnswer(moment, waiting, time.monotonic())
                    self._error = None
                    self._on_change()
                    self._wakes.wait(self._interval_s)
        except GoqError as error:
            self.failure = error
            self._on_change()

    def _state(self, client: Client, order: LiveOrder, search: str) -> LiveState:
        state = client.get_live_state(
            search=search or None,
            order=order,
            top=_TOPICS_MAX,
            interval_ms=round(self._interval_s * 1000),
        )
        if not search:
            self._are_many = state.is_partial
        return state

    def _failed(self, error: GoqError, _failing_s: float) -> bool:
        self._error = error.detail
        self._on_change()
        return not self._is_over


def _with_topics(state: LiveState, opened: LiveState) -> LiveState:
    """Return a state with the open topic, also where it is not among the first."""
    listed = {topic.name for topic in state.topics}
    others = tuple(topic for topic in opened.topics if topic.name not in listed)
    return replace(state, topics=state.topics + others) if others else state
