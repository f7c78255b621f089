"""Lists of 100,000 rows in a real browser: a page holds those that it shows, and finds the others.

A node holds fewer topics, so the answers come from a server that has the documents alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.api.console import Tab
from tests.support.api.large_console import COUNT, TOPIC, group_name, large_console, topic_name

pytestmark = pytest.mark.long
SHOWN = 100


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with large_console() as address:
        yield address


@pytest.fixture
def tab(browser: Any, url: str) -> Iterator[Tab]:
    opened = Tab(browser, url)
    yield opened
    assert opened.complaints == []
    opened.close()


def await_rows(tab: Tab, label: str, count: int) -> None:
    """Return when a table has so many rows."""
    table = f'[role="region"][aria-label="{label}"] tbody'
    tab.page.wait_for_function(
        "([table, count]) => document.querySelector(table)?.rows.length === count",
        arg=[table, count],
    )


def test_of_all_topics_a_page_holds_some_and_typing_finds_the_last(tab: Tab) -> None:
    tab.open("/topics", "Topics")
    await_rows(tab, "Topics", SHOWN)
    tab.press(f"Show more of {COUNT:,}")
    await_rows(tab, "Topics", 2 * SHOWN)
    tab.fill("Part of the name", topic_name(COUNT - 1).upper())
    await_rows(tab, "Topics", 1)
    tab.sees(topic_name(COUNT - 1))
    tab.fill("Part of the name", "")
    tab.page.get_by_label("First").select_option("lag")
    tab.sees(topic_name(COUNT - 1))
    await_rows(tab, "Topics", SHOWN)


def test_of_all_groups_of_a_topic_a_page_holds_some_and_typing_finds_the_last(tab: Tab) -> None:
    tab.open(f"/t/{TOPIC}", TOPIC)
    await_rows(tab, "Groups", SHOWN)
    tab.sees(f"The {SHOWN} with the most lag, of {COUNT:,}.")
    tab.fill("Part of the group's name", group_name(COUNT - 1))
    await_rows(tab, "Groups", 1)
    tab.sees(group_name(COUNT - 1))


def test_the_overview_holds_the_groups_that_lag_most(tab: Tab) -> None:
    tab.open("/", "Overview")
    await_rows(tab, "Groups", SHOWN)
    tab.sees(topic_name(COUNT - 1))


def test_of_all_partitions_a_page_holds_some_and_typing_finds_the_last(tab: Tab) -> None:
    tab.open("/cluster", "Cluster")
    await_rows(tab, "Partitions", SHOWN)
    tab.fill("Part of the topic's name", topic_name(COUNT - 1))
    await_rows(tab, "Partitions", 1)
    tab.sees(f"{topic_name(COUNT - 1)}:0")
