"""The view of ``goq top``: what is sorted, filtered, chosen and open, and its lines. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from goq_cli.output.table import TerminalTable
from goq_cli.output.text import escaped, shorten
from goq_cli.output.top.keyboard import BACKSPACE, DOWN, ENTER, ESCAPE, UP
from goq_cli.output.top.rates import GroupRate, Moment, TopicRate
from goq_cli.output.top.sections import (
    TopSection,
    group_section,
    node_section,
    summary,
    topic_section,
    waiting_section,
)

if TYPE_CHECKING:
    from goq.client.results.live import LiveOrder

LineKind = Literal["plain", "title", "head", "chosen", "notice", "help"]
_FILTER_CHARACTERS_MAX: Final = 200
_NAME_COLUMNS_MIN: Final = 10
_TOPIC_ORDERS: Final[dict[LiveOrder, Callable[[TopicRate], float]]] = {
    "publish": lambda topic: topic.published_per_s or 0,
    "deliver": lambda topic: topic.delivered_per_s or 0,
    "ack": lambda topic: topic.acked_per_s or 0,
    "lag": lambda topic: topic.lag,
    "bytes": lambda topic: topic.bytes,
    "name": lambda _topic: 0,
}
_GROUP_ORDERS: Final[dict[LiveOrder, Callable[[GroupRate], float]]] = {
    "deliver": lambda group: group.delivered_per_s or 0,
    "ack": lambda group: group.acked_per_s or 0,
    "name": lambda _group: 0,
}
ORDERS: Final = tuple(_TOPIC_ORDERS)


@dataclass(frozen=True, slots=True)
class TopLine:
    """A line of the screen, of plain text."""

    text: str
    kind: LineKind = "plain"


class TopView:
    """The state of the screen, changed by keys; ``is_over`` when it was quit."""

    def __init__(
        self, order: LiveOrder = ORDERS[0], search: str = "", *, opened: str | None = None
    ) -> None:
        self.is_over = False
        self.is_paused = False
        self.opened = opened
        place = ORDERS.index(order)
        self._orders = [*ORDERS[place:], *ORDERS[:place]]
        self._filter = search
        self._is_typing = False
        self._chosen: str | None = None
        self._moment: Moment | None = None

    @property
    def order(self) -> LiveOrder:
        """The order of topics."""
        return self._orders[0]

    @property
    def search(self) -> str:
        """The part of names that topics and groups must have."""
        return self._filter

    def press(self, key: str) -> None:
        """Do what a key is for."""
        if self._is_typing:
            self._type(key)
        elif key == "q":
            self.is_over = True
        elif key == "p":
            self.is_paused = not self.is_paused
        elif key == "s":
            self._orders.append(self._orders.pop(0))
        elif key == "/":
            self._is_typing, self.opened = True, None
        elif key == ENTER and self.opened is None:
            self._choose()
            self.opened = self._chosen
        elif key == ESCAPE:
            self.opened, self._filter = None, self._filter if self.opened else ""
        elif key in (UP, DOWN) and self.opened is None:
            names = self._choose()
            if self._chosen is not None:
                place = names.index(self._chosen) + (1 if key == DOWN else -1)
                self._chosen = names[max(0, min(place, len(names) - 1))]

    def _choose(self) -> list[str]:
        """Return the topics in their order; choose the first if the chosen one is not there."""
        topics, _ = self._sorted(self._moment) if self._moment is not None else ([], [])
        names = [topic.name for topic in topics]
        if self._chosen not in names:
            self._chosen = names[0] if names else None
        return names

    def _type(self, key: str) -> None:
        if key == ENTER:
            self._is_typing = False
        elif key == ESCAPE:
            self._is_typing, self._filter = False, ""
        elif key == BACKSPACE:
            self._filter = self._filter[:-1]
        elif len(key) == 1:
            self._filter = (self._filter + key)[:_FILTER_CHARACTERS_MAX]

    def lines(
        self,
        moment: Moment,
        waiting: Sequence[GroupRate],
        trouble: str | None,
        columns: int,
        rows: int,
    ) -> list[TopLine]:
        """Return the lines of a screen of this size: at most ``rows``, none wider than it is.

        ``waiting`` are groups with their lanes and tenants, of the open topic.
        """
        self._moment = moment
        notice = TopLine(f"NOT CURRENT: {escaped(trouble)}", "notice") if trouble else TopLine("")
        head = [TopLine(("PAUSED " * self.is_paused) + summary(moment), "title"), notice]
        space = max(0, rows - len(head) - 1)
        if self.opened is None:
            body = self._overview(moment, columns, space)
        else:
            body = self._topic(moment, waiting, columns, space)
        body = body[:space] + [TopLine("")] * (space - len(body))
        shown = [*head, *body, TopLine(self._help(), "help")][-rows:]
        return [TopLine(shorten(line.text, columns), line.kind) for line in shown]

    def _help(self) -> str:
        if self._is_typing:
            return f"filter: {escaped(self._filter)}_  (enter: done, escape: all)"
        if self.opened is not None:
            return "escape: back  p: pause  q: quit"
        keys = f"q quit  p pause  s sort: {self._orders[0]}  / filter  enter: open"
        return f"{keys}  filter: {escaped(self._filter)}" if self._filter else keys

    def _overview(self, moment: Moment, columns: int, space: int) -> list[TopLine]:
        topics, groups = self._sorted(moment)
        order = self._choose()
        names = max(_NAME_COLUMNS_MIN, columns // 5)
        node_rows, topic_rows, group_rows = shares(
            space - 5, len(moment.nodes), len(topics), len(groups)
        )
        place = order.index(self._chosen) if self._chosen is not None else 0
        start = max(0, min(place - topic_rows // 2, len(topics) - topic_rows))
        shown = topics[start : start + topic_rows]
        chosen = place - start if self._chosen is not None else None
        return [
            *_table(node_section(moment.nodes[:node_rows]), columns),
            *_table(topic_section(shown, names), columns, self._count(moment, topics), chosen),
            *_table(group_section(groups[:group_rows], names), columns, len(groups)),
        ]

    def _count(self, moment: Moment, topics: Sequence[TopicRate]) -> int:
        """Return how many topics match, also those that the node has not listed."""
        return moment.totals.topics if moment.is_partial else len(topics)

    def _topic(
        self, moment: Moment, waiting: Sequence[GroupRate], columns: int, space: int
    ) -> list[TopLine]:
        found = [topic for topic in moment.topics if topic.name == self.opened]
        if not found:
            return [TopLine(f"topic {escaped(self.opened)} is not there", "notice")]
        groups = sorted(found[0].groups, key=lambda group: (-group.lag, group.group))
        queues = waiting_section(each for each in waiting if each.topic == self.opened)
        _, group_rows, queue_rows = shares(space - 6, 0, len(groups), len(queues.rows))
        names = max(_NAME_COLUMNS_MIN, columns // 4)
        section = group_section(groups[:group_rows], names, has_topics=False)
        rows = queues.rows[:queue_rows]
        shown = TopSection(queues.title, queues.columns, rows, queues.right)
        return [
            *_table(topic_section(found, names), columns),
            *_table(section, columns, len(groups)),
            *_table(shown, columns, len(queues.rows)),
        ]

    def _sorted(self, moment: Moment) -> tuple[list[TopicRate], list[GroupRate]]:
        text = self._filter.casefold()
        topics, groups = sorted_by(moment, self.order)
        return (
            [topic for topic in topics if text in topic.name.casefold()],
            [
                group
                for group in groups
                if text in group.topic.casefold() or text in group.group.casefold()
            ],
        )


def sorted_by(moment: Moment, order: LiveOrder) -> tuple[list[TopicRate], list[GroupRate]]:
    """Return topics and groups with the most first; equal ones by name."""
    topic_order, group_order = _TOPIC_ORDERS[order], _GROUP_ORDERS.get(order, _lag_of)
    topics = sorted(moment.topics, key=lambda topic: (-topic_order(topic), topic.name))
    groups = sorted(
        moment.groups, key=lambda group: (-group_order(group), group.topic, group.group)
    )
    return topics, groups


def _lag_of(group: GroupRate) -> float:
    return group.lag


def shares(space: int, nodes: int, topics: int, groups: int) -> tuple[int, int, int]:
    """Return how many rows of each table fit: nodes get a quarter, topics half of the rest.

    What a table does not need is left to the others.
    """
    space = max(0, space)
    node_rows = min(nodes, max(space // 4, space - topics - groups))
    rest = space - node_rows
    topic_rows = min(topics, max(rest // 2, rest - groups))
    return node_rows, topic_rows, min(groups, rest - topic_rows)


def _table(
    section: TopSection, columns: int, count: int | None = None, chosen: int | None = None
) -> list[TopLine]:
    """Return the lines of a table and an empty one; the head says if there are more rows."""
    table = TerminalTable(section.columns, section.rows, section.right)
    table.fit(columns)
    head, *rows = table.lines(bold=False)
    if count is not None and count > len(rows):
        head += f"  ({len(rows)} of {count:,})"
    lines = [TopLine(row, "chosen" if number == chosen else "plain")
             for number, row in enumerate(rows)]  # fmt: skip
    return [TopLine(head, "head"), *lines, TopLine("")]
