"""``goq top``."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from goq import limits
from goq.errors import UsageError
from goq_cli.output.output import format_time, print_json, print_text
from goq_cli.output.table import print_table
from goq_cli.output.top.rates import Moment, RateMeter
from goq_cli.output.top.sections import (
    group_section,
    node_section,
    summary,
    topic_section,
    waiting_section,
)
from goq_cli.output.top.view import ORDERS, TopView, sorted_by
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.client import Client
    from goq.client.results.live import LiveOrder, LiveState


_TOPICS_LISTED: Final = 100


def command(
    once: Annotated[
        bool, typer.Option("--once", help="Print one screen, of one interval, and end.")
    ] = False,
    interval: Annotated[
        str, typer.Option(metavar="D", help="How long rates are measured: 500ms to 1m.")
    ] = "1s",
    topic: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this topic, with its lanes and tenants."),
    ] = None,
    sort: Annotated[
        str, typer.Option(metavar="ORDER", help="publish, deliver, ack, lag, bytes or name.")
    ] = ORDERS[0],
    filter_: Annotated[
        str, typer.Option("--filter", metavar="TEXT", help="Only topics with this in their names.")
    ] = "",
    limit: Annotated[
        int, typer.Option(metavar="N", help="With --once or --json, the first N topics.")
    ] = _TOPICS_LISTED,
) -> None:
    """Show the work of nodes, topics and groups: rates, lag, trend, time to drain.

    Keys: s sorts, / filters, the arrows and enter open a topic, escape leads back, p pauses, q
    quits. With --json, an object an interval. The interval in which a node restarts has no rates.
    """
    interval_s, order = _seconds(interval), _order(sort)
    if len(filter_) > limits.LIVE_SEARCH_MAX:
        raise UsageError(f"--filter: at most {limits.LIVE_SEARCH_MAX} characters")
    if not 1 <= limit <= limits.LIVE_TOPICS_MAX:
        raise UsageError(f"--limit: {limit} is not between 1 and {limits.LIVE_TOPICS_MAX:,}")
    if not (once or SESSION.json):
        _show(interval_s, TopView(order, filter_, opened=topic))
        return

    def state(client: Client) -> LiveState:
        return client.get_live_state(
            *(() if topic is None else (topic,)),
            search=filter_ or None,
            order=order,
            top=limit,
            interval_ms=round(interval_s * 1000),
        )

    meter = RateMeter()
    with SESSION.client() if once else SESSION.lasting_client(None, None, lambda: False) as client:
        meter.moment(state(client))
        while True:
            time.sleep(interval_s)
            moment = meter.moment(state(client))
            if SESSION.json:
                _print_json(moment)
            else:
                _print(moment, order)
            if once:
                return


def _order(text: str) -> LiveOrder:
    for order in ORDERS:
        if order == text:
            return order
    raise UsageError(f"--sort: {text!r} is none of {', '.join(ORDERS)}")


def _show(interval_s: float, view: TopView) -> None:
    """Show the live screen, once a node has answered."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not is_terminal or os.environ.get("TERM", "dumb") == "dumb":
        raise UsageError("the live screen needs a terminal: say --once, or --json")
    from goq_cli.output.top.screen import TopScreen

    with SESSION.client() as client:
        client.get_live_state(top=1)
    TopScreen(interval_s, view).run()


def _seconds(interval: str) -> float:
    from goq.units import parse_duration_ms

    seconds = parse_duration_ms(interval, field="--interval") / 1000
    if not limits.LIVE_INTERVAL_S_MIN <= seconds <= limits.LIVE_INTERVAL_S_MAX:
        raise UsageError(f"--interval: {interval} is not between 500ms and 1m")
    return seconds


def _print_json(moment: Moment) -> None:
    import msgspec

    print_json({**msgspec.to_builtins(moment), "time": format_time(moment.time)})
    sys.stdout.flush()


def _print(moment: Moment, order: LiveOrder) -> None:
    print_text(summary(moment), "")
    topics, groups = sorted_by(moment, order)
    sections = [node_section(moment.nodes), topic_section(topics), group_section(groups)]
    waiting = waiting_section(groups)
    if waiting.rows:
        sections.append(waiting)
    for number, section in enumerate(sections):
        if number:
            print_text("")
        print_table(section.columns, section.rows, right=section.right)
