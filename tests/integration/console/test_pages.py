"""The pages of the console, in a real browser, on a real node."""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.support.api import shop
from tests.support.api.calls import group_of, publish, receive, settle
from tests.support.api.console import WAIT_MS_MAX, Tab
from tests.support.api.shop import SHOP, fill_shop
from tests.support.node.fixtures import node
from tests.support.node.running_node import RunningNode, running_node
from tests.support.paths import DOCS

__all__ = ["node"]

PICTURED = "shop-mails"
PICTURES = {"/": "overview", f"/m/{SHOP}:0:0": "message", f"/t/{SHOP}/g/billing": "group"}
PAGES = [
    ("/", "Overview", "Nothing is wrong."),
    ("/topics", "Topics", SHOP),
    *shop.PAGES,
    ("/cluster", "Cluster", "one node"),
    ("/metrics", "Metrics", "99 % are done within"),
    ("/nothing", "No such page", "Go to the overview."),
]


@pytest.fixture(scope="module")
def traffic(node: RunningNode) -> RunningNode:
    """The node, with a topic on which most things have happened."""
    node.call("POST", "/v1/topics", {"name": SHOP, "partitions": 1})
    fill_shop(node)
    return node


@pytest.fixture
def tab(browser: Any, traffic: RunningNode) -> Iterator[Tab]:
    """A tab that must have left the host alone and have nothing to complain of."""
    opened = Tab(browser, traffic.url)
    yield opened
    found = opened.complaints, opened.foreign
    opened.close()
    assert found == ([], [])


def test_each_page_shows_the_traffic_to_everybody(tab: Tab, traffic: RunningNode) -> None:
    traffic.call("POST", "/v1/topics", {"name": PICTURED, "partitions": 1})
    for hash_, heading, text in PAGES:
        tab.open(hash_, heading)
        tab.sees(text)
        for scheme in ("light", "dark"):
            tab.page.emulate_media(color_scheme=scheme)
            assert tab.barriers() == [], f"{hash_} {scheme}"
        tab.page.emulate_media(color_scheme="light")
        if hash_ in PICTURES and "GOQ_PICTURES" in os.environ:
            path = DOCS / "images" / f"console-{PICTURES[hash_]}.png"
            for number in range(20):  # for the graph
                publish(traffic, PICTURED, *(str(number) for _ in range(1 + number % 7)))
                tab.page.wait_for_timeout(500)
            tab.page.screenshot(path=path)
        tab.page.set_viewport_size({"width": 360, "height": 640})
        assert tab.width_over() == 0, f"{hash_} is wider than 360 pixels"
        tab.page.set_viewport_size({"width": 1200, "height": 800})


def test_the_life_of_a_message_has_its_leases_as_bars_and_its_dead_letter(tab: Tab) -> None:
    tab.open(f"/m/{SHOP}:0:0", f"{SHOP}:0:0")
    tab.sees("REJECTED")
    assert tab.page.locator("svg.life rect.lease.bad").count() == 1
    assert tab.page.locator("svg.life path.branch").count() == 1
    tab.page.get_by_role("link", name=f"{SHOP}.dlq:0:0").first.click()
    tab.sees("card declined")
    tab.open(f"/m/{SHOP}:0:6", f"{SHOP}:0:6")
    tab.sees("till-2")
    assert tab.page.locator("svg.life rect.lease.open").count() == 1


def test_leases_that_ended_without_a_settlement_are_drawn_as_ended(
    tab: Tab, traffic: RunningNode
) -> None:
    topic = "given-back"
    traffic.call("POST", "/v1/topics", {"name": topic, "partitions": 1})
    publish(traffic, topic, "a")
    settle(traffic, topic, "release", receive(traffic, topic)[0]["receipt"])
    receive(traffic, topic)
    traffic.call("POST", f"/v1/topics/{topic}/groups/g/reset", {"to": "earliest"})
    settle(traffic, topic, "ack", receive(traffic, topic)[0]["receipt"])
    tab.open(f"/m/{topic}:0:0", f"{topic}:0:0")
    leases = tab.page.locator("svg.life rect.lease title")
    _has_count(leases, 3)
    ends = [title.rsplit(" ", 1)[1] for title in leases.all_text_contents()]
    assert ends == ["RETURNED", "RESET", "ACKNOWLEDGED"]


def test_a_value_is_shown_as_a_tree_as_text_and_in_hex(tab: Tab) -> None:
    tab.open(f"/m/{SHOP}:0:7", f"{SHOP}:0:7")
    tab.page.locator(".json-string", has_text="order-7").wait_for()
    tab.press("Text")
    tab.sees('{"order": "order-7"')
    tab.press("Hex")
    tab.sees("00000000  7b 22 6f 72")


def test_the_tree_shows_numbers_as_they_are_written_at_any_depth(
    tab: Tab, traffic: RunningNode
) -> None:
    traffic.call("POST", "/v1/topics", {"name": "trees", "partitions": 1})
    publish(
        traffic,
        "trees",
        '{"id": 12345678901234567890, "price": 1.10, "in": {"a": {"b": {"c": 7}}}}',
    )
    publish(traffic, "trees", "[" * 2_000 + "]" * 2_000)
    tab.open("/m/trees:0:0", "trees:0:0")
    numbers = tab.page.locator(".json-number")
    numbers.first.wait_for()
    assert numbers.all_text_contents() == ["12345678901234567890", "1.10"]
    tab.page.get_by_text("b: {1}").click()
    numbers.nth(2).wait_for()
    assert numbers.all_text_contents() == ["12345678901234567890", "1.10", "7"]
    tab.open("/m/trees:0:1", "trees:0:1")
    tab.page.get_by_label("Value", exact=True).get_by_text("[").first.wait_for()


EVIL = (
    "<img src=x onerror=window.ran=1>",
    "<script>window.ran=1</script>",
    '"><svg onload=window.ran=1>',
    "javascript:window.ran=1",
    "${window.ran=1}{{window.ran=1}}",
    "</textarea><iframe srcdoc='<script>parent.ran=1</script>'>",
    "__proto__",
)


def test_no_text_of_a_message_ever_runs(tab: Tab, traffic: RunningNode) -> None:
    topic = "evil"
    traffic.call("POST", "/v1/topics", {"name": topic, "partitions": 1})
    settings = {"settings": {"ordering": "none"}}
    traffic.call("PUT", f"/v1/topics/{topic}/groups/g", settings)
    for text in EVIL:
        value = f'{{"{text.replace(chr(34), "")}": ["{text.replace(chr(34), "")}"]}}'
        headers = {"x": text, "__proto__": text}
        fields = {"key": text, "headers": headers, "tenant": text[:60], "dedup_id": text}
        publish(traffic, topic, text, **fields)
        publish(traffic, topic, value, key=text, headers=headers, delay="5h")
    for _ in EVIL:
        (message,) = receive(traffic, topic, max_messages=1, consumer=EVIL[0])
        settle(traffic, topic, "reject", message["receipt"], reason=EVIL[0])
    traffic.call("GET", f"/v1/topics/{topic}/dead")
    ids = [f"{topic}:0:{offset}" for offset in range(2 * len(EVIL))]
    pages = [(f"/t/{topic}{tail}", topic) for tail in ("", "/messages", "/dead", "/scheduled")]
    hostile = f"/m/{EVIL[0].replace('/', '')}"
    for hash_, heading in [*pages, (f"/t/{topic}/g/g", "g"), *((f"/m/{one}", one) for one in ids)]:
        tab.open(hash_, heading)
        tab.page.locator("main .card").first.wait_for()
    tab.page.goto(f"{tab.url}/ui/#{hostile}")
    tab.page.locator("main h1").wait_for()
    assert tab.page.evaluate("window.ran") is None
    assert tab.page.locator("main img, main script, main iframe").count() == 0
    assert all("/ui/x" not in url for url in tab.requests)
    tab.open(f"/m/{ids[0]}", ids[0])
    tab.sees(EVIL[0])


def test_everything_can_be_done_by_keyboard(tab: Tab) -> None:
    tab.open("/", "Overview")
    keyboard = tab.page.keyboard
    tab.page.locator("body").press("/")
    keyboard.type(f"{SHOP}:0:8")
    keyboard.press("Enter")
    tab.page.get_by_role("heading", level=1, name=f"{SHOP}:0:8").wait_for()
    button = tab.page.get_by_role("button", name="Cancel", exact=True)
    button.focus()
    keyboard.press("Enter")
    tab.page.get_by_role("dialog").wait_for()
    keyboard.press("Escape")
    tab.page.get_by_role("dialog").wait_for(state="detached")
    assert button.evaluate("element => element === document.activeElement")
    tab.open("/", "Overview")
    tab.page.reload()
    tab.page.get_by_role("heading", level=1, name="Overview").wait_for()
    reached = set()
    for _ in range(40):
        keyboard.press("Tab")
        reached.add(tab.page.evaluate("document.activeElement.textContent"))
    assert {"Skip to the page", "Topics", "Cluster", "Token", SHOP, "billing"} <= reached


def test_a_message_is_published_moved_rescheduled_and_cancelled(
    tab: Tab, traffic: RunningNode
) -> None:
    topic = "changes"
    traffic.call("POST", "/v1/topics", {"name": topic, "partitions": 1})
    tab.open(f"/t/{topic}/messages", topic)
    tab.press("Publish")
    dialog = tab.page.get_by_role("dialog")
    tab.fill("Value", "from a browser")
    tab.fill("Delay", "3h")
    dialog.get_by_role("button", name="Publish").click()
    tab.sees(f"Published {topic}:0:0.")
    tab.page.get_by_role("link", name=f"{topic}:0:0").click()
    tab.press("Priority")
    dialog.get_by_label("Lane").select_option("low")
    tab.press("Change it")
    tab.sees("has the priority low")
    before = traffic.call("GET", f"/v1/messages/{topic}:0:0")["deliver_at"]
    tab.press("Reschedule")
    due = datetime.now() + timedelta(days=20)
    tab.fill("New time, in your zone", f"{due:%Y-%m-%dT%H:%M:%S}")
    dialog.get_by_role("button", name="Reschedule").click()
    tab.sees(f"{topic}:0:0 is scheduled, due {due:%Y-%m-%d %H:%M:%S}.")
    tab.press("Cancel")
    tab.sees("This cannot be undone.")
    tab.fill("Reason, for whoever looks later", "not wanted")
    tab.press("Cancel the message")
    tab.sees("CANCELLED")
    shown = traffic.call("GET", f"/v1/messages/{topic}:0:0")
    assert (shown["state"], shown["priority"]) == ("cancelled", "low")
    assert shown["deliver_at"] != before
    trace = traffic.call("GET", f"/v1/messages/{topic}:0:0/trace")
    assert trace["events"][-1]["reason"] == "not wanted"


def test_lanes_without_names_are_given_by_number(tab: Tab, traffic: RunningNode) -> None:
    topic = "numbered"
    settings = {"priority.lanes": "numbers"}
    traffic.call("POST", "/v1/topics", {"name": topic, "partitions": 1, "settings": settings})
    tab.open(f"/t/{topic}/messages", topic)
    tab.press("Publish")
    dialog = tab.page.get_by_role("dialog")
    tab.fill("Value", "from a browser")
    tab.page.get_by_role("spinbutton", name="Priority").fill("7")
    assert tab.barriers() == []
    dialog.get_by_role("button", name="Publish").click()
    tab.sees(f"Published {topic}:0:0.")
    path = f"/v1/messages/{topic}:0:0"
    assert traffic.call("GET", path)["priority"] == "7"
    tab.open(f"/m/{topic}:0:0", f"{topic}:0:0")
    tab.press("Priority")
    lane = tab.page.get_by_role("spinbutton", name="Lane")
    lane.wait_for()
    assert lane.input_value() == "7"
    lane.fill("256")
    tab.press("Change it")
    assert lane.evaluate("element => element.validity.rangeOverflow")
    lane.fill("255")
    tab.press("Change it")
    tab.sees("has the priority 255")
    assert traffic.call("GET", path)["priority"] == "255"


def test_messages_are_found_by_text_and_older_ones_on_demand(
    tab: Tab, traffic: RunningNode
) -> None:
    topic = "many"
    traffic.call("POST", "/v1/topics", {"name": topic, "partitions": 3})
    publish(traffic, topic, "needle", key="the key")
    publish(traffic, topic, *(f"straw {number}" for number in range(120)))
    tab.open(f"/t/{topic}/messages", topic)
    rows = tab.page.locator("tbody tr")
    tab.sees("straw 119")
    assert rows.count() == 50
    tab.press("Older messages")
    tab.sees("straw 30")
    tab.fill("Text", "NEEDLE")
    tab.press("Find")
    tab.sees("the key")
    assert rows.count() == 1
    tab.press("All")
    tab.sees("straw 119")
    publish(traffic, topic, "it came while somebody looked")
    tab.sees("it came while somebody looked")


def test_a_group_is_seen_at_an_earlier_moment_and_reset_after_a_dry_run(
    tab: Tab, traffic: RunningNode
) -> None:
    topic = "past"
    traffic.call("POST", "/v1/topics", {"name": topic, "partitions": 1})
    publish(traffic, topic, "a", "b", "c")
    taken = receive(traffic, topic)
    settle(traffic, topic, "ack", *(one["receipt"] for one in taken))
    tab.open(f"/t/{topic}/g/g", "g")
    tab.sees("Delivered or done up to")
    slider = tab.page.get_by_role("slider")
    tab.page.locator("input[type=range]:enabled").wait_for()
    slider.fill("0")
    tab.sees("as it was then")
    assert any("as_of=" in url for url in _eventually(tab, "as_of="))
    slider.fill("1000")
    tab.page.get_by_text("now", exact=True).wait_for()
    tab.press("Reset")
    tab.press("Show what it would do")
    tab.sees("3 messages would come again")
    assert group_of(traffic, topic)["lag"] == 0
    tab.press("Reset the group")
    tab.sees("g is reset: 3 messages again, 0 skipped.")
    assert group_of(traffic, topic)["lag"] == 3


def test_moments_are_chosen_when_retention_has_deleted_all_messages(browser: Any) -> None:
    with running_node() as node:
        settings = {"retention.age": "1d", "segment.age": "1h"}
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 1, "settings": settings})
        publish(node, "t", "a")
        settle(node, "t", "ack", receive(node, "t")[0]["receipt"])
        publish(node, "t", "b")  # with it the history begins that is kept
        node.clock.ahead_ms += 3 * 24 * 3_600_000
        broker = node.node.broker
        assert broker is not None
        node.on_loop(broker.retention_manager.apply)
        assert node.call("GET", "/v1/topics/t/history")["first_time"] is None
        tab = Tab(browser, node.url)
        tab.open("/t/t/g/g", "g")
        tab.page.get_by_text(re.compile("^from .* until now$")).wait_for()
        for place in ("0", "500"):
            with tab.page.expect_response("**as_of=2*") as answered:
                tab.page.get_by_role("slider").fill(place)
            assert answered.value.status == 200, answered.value.text()
        tab.sees("as it was then")
        assert tab.complaints == []
        tab.close()


def test_a_topic_without_messages_says_so_until_one_comes(tab: Tab, traffic: RunningNode) -> None:
    traffic.call("POST", "/v1/topics", {"name": "void", "partitions": 1})
    traffic.call("PUT", "/v1/topics/void/groups/g", {"settings": {}})
    tab.open("/t/void/g/g", "g")
    tab.sees("The topic has no message yet.")
    assert tab.page.get_by_role("slider").is_disabled()
    publish(traffic, "void", "a")
    tab.page.get_by_text(re.compile("^from .* until now$")).wait_for()
    assert tab.page.get_by_role("slider").is_enabled()


def test_moments_are_chosen_by_a_token_that_may_not_read_the_topic(browser: Any) -> None:
    with running_node(security={"auth": "tokens"}) as node:
        admin = (node.data_dir / "admin.token").read_text().strip()

        def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
            answer = node.request("POST", path, body, {"Authorization": f"Bearer {admin}"})
            found: dict[str, Any] = answer.json
            return found

        post("/v1/topics", {"name": "t", "partitions": 1})
        post("/v1/topics/t/messages", {"messages": [{"value": "a"}]})
        post("/v1/topics/t/groups/g/receive", {})
        token = post("/v1/tokens", {"name": "worker", "allow": ["consume:t/g"]})["token"]
        node.clock.ahead_ms += 3_600_000
        tab = Tab(browser, node.url)
        tab.page.clock.install(time=time.time() + 3600)
        tab.open("/t/t/g/g", "g")
        tab.page.get_by_role("textbox", name="Token").fill(token)
        tab.press("Use it")
        tab.sees("the last 7 days; the first moment is not known")
        with tab.page.expect_response("**as_of=2*") as answered:
            tab.page.get_by_role("slider").fill("999")  # ten minutes ago
        assert answered.value.status == 200, answered.value.text()
        tab.sees("as it was then")
        tab.close()


def _eventually(tab: Tab, part: str) -> list[str]:
    """Return the requests once one has this part."""
    while not any(part in url for url in tab.requests):
        tab.page.wait_for_event("request")
    return tab.requests


def test_dead_letters_are_chosen_redriven_and_purged(tab: Tab, traffic: RunningNode) -> None:
    topic = "dying"
    traffic.call("POST", "/v1/topics", {"name": topic, "partitions": 1})
    publish(traffic, topic, "a", "b", "c")
    for number, message in enumerate(receive(traffic, topic)):
        reason = "bad card" if number else "bad bank"
        settle(traffic, topic, "reject", message["receipt"], reason=reason)
    dead = f"/v1/topics/{topic}/dead"
    tab.open(f"/t/{topic}/dead", topic)
    tab.press("Only rejected bad card of g")
    tab.sees("Only those of g, of the cause rejected, with the reason “bad card”.")
    tab.page.get_by_label(re.compile("^Choose ")).first.check()
    tab.press("Redrive 1")
    tab.sees("1 message would go back")
    assert len(traffic.call("GET", dead)["messages"]) == 3
    tab.page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    tab.sees("1 dead letter put back.")
    tab.press("Purge")
    tab.sees("1 dead letter would be gone.")
    purge = tab.page.get_by_role("dialog").get_by_role("button", name="Purge")
    assert purge.is_disabled()
    tab.fill(f"Type {topic} to confirm", topic)
    purge.click()
    tab.sees("1 dead letter taken away.")
    assert [one["reason"] for one in traffic.call("GET", dead)["messages"]] == ["bad bank"]


@pytest.mark.parametrize(("reason", "words"), [("timeout", "timeout"), ("", "without a reason")])
def test_only_the_dead_letters_of_a_row_are_shown_and_purged(
    tab: Tab, traffic: RunningNode, reason: str, words: str
) -> None:
    topic = f"dying-{words.split()[0]}"
    reasons = ["timeout", "timeout in payment", "", "", "\U0001f4a5\r\n"]
    traffic.call("POST", "/v1/topics", {"name": topic, "partitions": 1})
    publish(traffic, topic, *reasons)
    for message in receive(traffic, topic):
        settle(traffic, topic, "reject", message["receipt"], reason=message["value"])
    count = reasons.count(reason)
    tab.open(f"/t/{topic}/dead", topic)
    tab.press(f"Only rejected {words} of g")
    tab.page.get_by_text("Only those of g").wait_for()
    _has_count(tab.page.get_by_role("region", name="Dead letters").locator("tbody tr"), count)
    tab.press("Redrive")
    tab.sees(f"{count} message{'s'[: count - 1]} would go back")
    tab.page.keyboard.press("Escape")
    tab.press("Purge")
    purge = tab.page.get_by_role("dialog").get_by_role("button", name="Purge")
    tab.fill(f"Type {topic} to confirm", topic)
    purge.click()
    tab.sees(f"{count} dead letter{'s'[: count - 1]} taken away.")
    left = traffic.call("GET", f"/v1/topics/{topic}/dead")["messages"]
    assert [one["value"] for one in left] == [one for one in reasons if one != reason]


@pytest.mark.parametrize("cleanup", ["compact", "delete"])
def test_offsets_of_a_compacted_topic_are_not_called_its_messages(
    tab: Tab, traffic: RunningNode, cleanup: str
) -> None:
    settings = {"cleanup": cleanup}
    new = {"name": f"by-{cleanup}", "partitions": 1, "settings": settings}
    traffic.call("POST", "/v1/topics", new)
    tab.open(f"/t/by-{cleanup}", f"by-{cleanup}")
    is_compact = cleanup == "compact"
    note = "UTC, at most: compaction may have removed some" if is_compact else "UTC, still kept"
    tab.sees(note)
    _has_count(tab.page.get_by_text("Messages, at most"), 2 if is_compact else 0)


def test_what_goes_on_is_shown_as_it_happens(tab: Tab, traffic: RunningNode) -> None:
    topic = "busy"
    traffic.call("POST", "/v1/topics", {"name": topic, "partitions": 2})
    publish(traffic, topic, "a", "b", tenant="acme", priority="high")
    publish(traffic, topic, "c", priority="low")
    receive(traffic, topic, "slow", max_messages=1)
    tab.open(f"/t/{topic}", topic)
    tab.sees("acme 1")
    stat = tab.page.locator(".stats div", has_text="Published / s").locator("dd")
    for number in itertools.count():
        publish(traffic, topic, *(str(number) for _ in range(10)))
        if stat.inner_text() not in ("\u2013", "0"):
            break
        assert number < 10_000
    tab.open("/metrics", "Metrics")
    tab.page.locator(".graph canvas").nth(5).wait_for()
    tab.open("/topics", "Topics")
    tab.fill("Part of the name", "bus")
    row = tab.page.locator("tbody tr")
    _has_count(row, 1)
    publish(traffic, topic, "one more")
    messages = sum(
        one["end_offset"] - one["start_offset"]
        for one in traffic.call("GET", f"/v1/topics/{topic}")["partitions"]
    )
    row.get_by_text(f"{messages:,}", exact=True).first.wait_for()  # also of the lag


@pytest.mark.parametrize("lanes", [None, "absent", []])
def test_lanes_that_the_node_does_not_know_are_not_taken_for_empty_ones(
    tab: Tab, traffic: RunningNode, lanes: Any
) -> None:
    topic = f"unread-{lanes}".strip("[]")
    traffic.call("POST", "/v1/topics", {"name": topic, "partitions": 1})
    publish(traffic, topic, "a", "b")
    receive(traffic, topic, max_messages=1)

    def with_lanes(route: Any) -> None:
        lines = route.fetch(url=route.request.url + "&limit=1").text().splitlines()
        shown = [json.loads(line) for line in lines if line.strip()]
        for one in (one for line in shown for topic in line["topics"] for one in topic["groups"]):
            for name in ("lanes", "tenants"):
                if lanes == "absent":
                    del one[name]
                else:
                    one[name] = lanes
        route.fulfill(body="".join(json.dumps(line) + "\n" for line in shown))

    tab.page.route(f"**/v1/live?topics={topic}*", with_lanes)
    tab.open(f"/t/{topic}", topic)
    tab.sees("1 ready, 1 in flight: of which lanes and tenants is not known.")
    assert tab.page.get_by_text("waits for its first delivery").count() == 0
    assert tab.barriers() == []


DRAWN = """
window.drawn = [];
const draw = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  window.drawn.push([this.canvas, text]);
  return draw.call(this, text, ...rest);
};
"""


LABELS = """title => window.drawn.filter(([canvas]) =>
  canvas.closest("section").querySelector("h2").textContent.startsWith(title))
  .map(([, text]) => text).filter((text) => !text.includes(":"))"""


def test_the_values_of_an_axis_are_not_rounded(tab: Tab) -> None:
    def with_lag_of_one(route: Any) -> None:
        line = json.loads(route.fetch(url=route.request.url + "&limit=1").text().strip())
        line["totals"] |= {"lag": 1, "leased": 0}
        later = {**line, "time": "2100-01-01T00:00:00.000000Z"}
        route.fulfill(body=json.dumps(line) + "\n" + json.dumps(later) + "\n")

    tab.page.add_init_script(DRAWN)
    tab.page.route("**/v1/live?top=1", with_lag_of_one)
    tab.open("/metrics", "Metrics")
    tab.page.wait_for_function(f"title => ({LABELS})(title).includes('0.5')", arg="Waiting")
    assert tab.page.evaluate(LABELS, "Waiting")[-3:] == ["0", "0.5", "1"]
    sizes = tab.page.evaluate(LABELS, "Bytes published a second")
    assert sizes[:3] == ["0 B", "512 B", "1.0 KiB"]


def test_a_notice_goes_by_itself_unless_somebody_is_at_it(tab: Tab) -> None:
    tab.page.clock.install()
    tab.open(f"/m/{SHOP}:0:7", f"{SHOP}:0:7")
    tab.press("Copy link")
    notice = tab.page.locator(".notice span")
    notice.wait_for()
    notice.hover()
    tab.page.clock.run_for(60_000)
    assert notice.count() == 1
    tab.page.mouse.move(0, 0)
    tab.page.clock.run_for(11_000)
    notice.wait_for(state="detached")


def _has_count(rows: Any, count: int) -> None:
    """Return when there are so many rows."""
    expect = pytest.importorskip("playwright.sync_api").expect
    expect(rows).to_have_count(count, timeout=WAIT_MS_MAX)


def test_of_many_topics_the_node_finds_and_sorts_those_that_are_shown(
    tab: Tab, traffic: RunningNode
) -> None:
    for name in ("lot-a", "lot-b", "lot-c", "lot-d"):
        traffic.call("POST", "/v1/topics", {"name": name, "partitions": 1})
    publish(traffic, "lot-d", *map(str, range(20)))

    def with_fewer(route: Any) -> None:
        url = route.request.url.replace("top=100", "top=2").replace("top=200", "top=4")
        route.continue_(url=url)

    tab.page.route("**/v1/live?**", with_fewer)
    tab.open("/topics", "Topics")
    rows = tab.page.locator("tbody tr")
    _has_count(rows, 2)
    tab.fill("Part of the name", "LOT-")
    tab.sees("2 of 4")
    assert rows.first.get_by_role("link", name="lot-a").is_visible()
    tab.page.get_by_label("First", exact=True).select_option("messages")
    rows.first.get_by_role("link", name="lot-d").wait_for()
    tab.press("Show more of 4")
    _has_count(rows, 4)
    tab.fill("Part of the name", "lot-c")
    _has_count(rows, 1)


def test_of_many_groups_those_that_lag_most_are_listed_and_others_are_found(
    tab: Tab, traffic: RunningNode
) -> None:
    topic = "read-by-many"
    traffic.call("POST", "/v1/topics", {"name": topic, "partitions": 1})
    for number in range(102):
        path = f"/v1/topics/{topic}/groups/reader-{number:03}"
        traffic.call("PUT", path, {"settings": {}})
    tab.open(f"/t/{topic}", topic)
    rows = tab.page.get_by_role("region", name="Groups").locator("tbody tr")
    _has_count(rows, 100)
    tab.sees("The 100 with the most lag, of 102.")
    tab.fill("Part of the group's name", "READER-101")
    _has_count(rows, 1)
    assert rows.get_by_role("link", name="reader-101").is_visible()
    tab.fill("Part of the group's name", "")
    _has_count(rows, 100)


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_wrong_clock_of_the_browser_does_not_matter(
    tab: Tab, traffic: RunningNode, hours: int
) -> None:
    topic = f"late-{hours}"
    traffic.call("POST", "/v1/topics", {"name": topic, "partitions": 1})
    publish(traffic, topic, "late", delay="3h")
    tab.page.clock.install(time=time.time() + 3600 * hours)
    tab.open(f"/t/{topic}/scheduled", topic)
    tab.page.get_by_text("in 2 h 59 min").first.wait_for()


def test_a_hidden_tab_asks_the_node_for_nothing(browser: Any, traffic: RunningNode) -> None:
    tab = Tab(browser, traffic.url)
    tab.page.clock.install()
    tab.open("/", "Overview")
    tab.sees("Nothing is wrong.")
    hide = "Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true})"
    with tab.page.expect_event("requestfailed", lambda request: "/v1/live" in request.url):
        tab.page.evaluate(f"window.away = true; {hide}; {_CHANGED}")
    count = len(tab.requests)
    tab.page.clock.run_for(60_000)
    assert len(tab.requests) == count
    with tab.page.expect_request("**/v1/live?**"):
        tab.page.evaluate(f"window.away = false; {_CHANGED}")
    tab.close()


_CHANGED = "document.dispatchEvent(new Event('visibilitychange'))"


def test_the_console_says_what_is_wrong_and_goes_on_when_the_node_is_back(
    browser: Any,
) -> None:
    with running_node() as first:
        first.call("POST", "/v1/topics", {"name": "before", "partitions": 1})
        publish(first, "before", "it waits")
        first.call("PUT", "/v1/topics/before/groups/billing", {"settings": {}})
        first.clock.ahead_ms = 12 * 60_000 + 1000
        tab = Tab(browser, first.url)
        tab.open("/", "Overview")
        tab.sees("before/billing: oldest waits 12 min")
        tab.open("/topics", "Topics")
        tab.sees("before")
        tab.open("/cluster", "Cluster")
        tab.sees("before:0")
        listen, folder = first.url.removeprefix("http://"), first.data_dir
        first.stop()
        tab.sees("The node does not answer.")
        with running_node(folder, broker={"listen": listen}):
            tab.page.get_by_text("The node does not answer.").first.wait_for(state="detached")
            tab.sees("before:0")
        tab.close()


def test_a_token_is_asked_for_and_stays_in_the_tab(browser: Any) -> None:
    with running_node(security={"auth": "tokens"}) as node:
        token = (node.data_dir / "admin.token").read_text().strip()
        tab = Tab(browser, node.url)
        tab.open("/cluster", "Cluster")
        field = tab.page.get_by_role("textbox", name="Token")
        field.fill("goq_wrong_token")
        tab.press("Use it")
        tab.page.get_by_role("dialog").get_by_role("alert").wait_for()
        field.fill(token)
        tab.press("Use it")
        tab.sees("The token is accepted.")
        tab.sees("one node")
        tab.page.reload()
        tab.sees("one node")
        assert token not in tab.page.url + "".join(tab.requests)
        assert tab.page.evaluate("localStorage.length + document.cookie.length") == 0
        other = tab.context.new_page()
        other.goto(f"{node.url}/ui/#/cluster")
        other.get_by_role("dialog").wait_for()
        assert other.evaluate("sessionStorage.length") == 0
        tab.press("Token")
        tab.press("Forget it")
        assert tab.page.evaluate("sessionStorage.length") == 0
        assert tab.complaints == []
        tab.close()
