"""``goq top``."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated

import typer

from goq import limits
from goq.errors import UsageError
from goq_cli.output.output import format_time, print_json, print_text
from goq_cli.output.table import print_table
from goq_cli.output.top.rates import Moment, RateMeter
from goq_cli.output.top.sections import group_section, node_section, summary, topic_section
from goq_cli.session import SESSION


def command(
    once: Annotated[
        bool, typer.Option("--once", help="Print one screen, of one interval, and end.")
    ] = False,
    interval: Annotated[
        str, typer.Option(metavar="D", help="How long rates are measured: 500ms to 1m.")
    ] = "1s",
) -> None:
    """Show the work of nodes, topics and groups: rates, lag, trend, time to drain.

    Keys: s sorts, / filters, the arrows and enter open a topic, escape leads back, p pauses, q
    quits. With --json, an object an interval. The interval in which a node restarts has no rates.
    """
    interval_s = _seconds(interval)
    if not (once or SESSION.json):
        _show(interval_s)
        return
    meter = RateMeter()
    with SESSION.client() if once else SESSION.lasting_client(None, None, lambda: False) as client:
        meter.moment(client.get_live_state())
        while True:
            time.sleep(interval_s)
            moment = meter.moment(client.get_live_state())
            if SESSION.json:
                _print_json(moment)
            else:
                _print(moment)
            if once:
                return


def _show(interval_s: float) -> None:
    """Show the live screen, once a node has answered."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not is_terminal or os.environ.get("TERM", "dumb") == "dumb":
        raise UsageError("the live screen needs a terminal: say --once, or --json")
    from goq_cli.output.top.screen import TopScreen

    with SESSION.client() as client:
        client.get_live_state()
    TopScreen(interval_s).run()


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


def _print(moment: Moment) -> None:
    print_text(summary(moment), "")
    sections = (node_section(moment.nodes), topic_section(moment.topics))
    for number, section in enumerate((*sections, group_section(moment.groups))):
        if number:
            print_text("")
        print_table(section.columns, section.rows, right=section.right)
