"""A topic on which most things have happened, and what each page of the console shows of it."""

from __future__ import annotations

from tests.support.api.calls import publish, receive, settle
from tests.support.node.running_node import RunningNode

SHOP = "shop-orders"
PAGES = [
    (f"/t/{SHOP}", SHOP, "retention.age"),
    (f"/t/{SHOP}/messages", SHOP, "order-0"),
    (f"/t/{SHOP}/dead", SHOP, "card declined"),
    (f"/t/{SHOP}/scheduled", SHOP, "a reminder"),
    (f"/t/{SHOP}/g/billing", "billing", "till-2"),
    (f"/m/{SHOP}:0:0", f"{SHOP}:0:0", "DEAD_LETTERED"),
]


def fill_shop(node: RunningNode) -> None:
    """Publish, deliver, settle and delay on the topic, which is there."""
    settings = {"settings": {"ordering": "none"}}
    node.call("PUT", f"/v1/topics/{SHOP}/groups/billing", settings)
    for number in range(12):
        value = f'{{"order": "order-{number}", "paid": true, "items": [1, {{"sku": null}}]}}'
        headers = {"source": "shop"}
        publish(node, SHOP, value, key=f"key-{number}", headers=headers, tenant=f"t-{number % 3}")
    publish(node, SHOP, "a reminder", key="r", delay="2h")
    first, second, *rest = receive(node, SHOP, "billing", max_messages=6, consumer="till-1")
    settle(node, SHOP, "reject", first["receipt"], group="billing", reason="card declined")
    settle(node, SHOP, "nack", second["receipt"], group="billing", reason="bank", delay="1h")
    settle(node, SHOP, "ack", *(one["receipt"] for one in rest), group="billing")
    receive(node, SHOP, "billing", max_messages=2, consumer="till-2", visibility="10m")
    node.call("GET", f"/v1/topics/{SHOP}/dead")
