"""What a member shows of the others."""

from __future__ import annotations

import asyncio
import math
from typing import Any, cast

from goq.cluster.admin.cluster_view import ClusterView
from goq.cluster.metadata.commands import FenceNode, RegisterNode
from goq.cluster.raft.driver import RaftStatus
from tests.support.cluster.metadata.local_raft import proposing

_PART = cast(Any, None)


def test_the_controller_is_shown_while_the_node_hears_it() -> None:
    silent_s = [math.inf]
    view = ClusterView(
        "n1",
        lambda: proposing().state,
        lambda: RaftStatus(leader="n2"),
        lambda: silent_s[-1],
        _PART,
        _PART,
        _PART,
        dict,
        dict,
    )
    assert (view.controller, view.unheard_s) == (None, None)
    silent_s.append(0.5)
    assert (view.controller, view.unheard_s) == ("n2", None)
    silent_s.append(12.0)
    assert (view.controller, view.unheard_s) == (None, 12.0)


def test_what_a_node_does_not_reach_over_either_port_is_shown_while_it_is_up() -> None:
    cluster = proposing()
    for name in ("n1", "n2", "n3", "n4"):
        entry = RegisterNode(name, 1, f"http://{name}", f"{name}:1")
        asyncio.run(cluster.propose(entry))
    unreachable = {"n1": ["n2"], "n3": ["n2"]}
    status = RaftStatus(unconnected=frozenset({"n3", "n4"}))
    view = ClusterView(
        "n1",
        lambda: cluster.state,
        lambda: status,
        lambda: 0.0,
        _PART,
        _PART,
        _PART,
        dict,
        lambda: unreachable,
    )
    assert view.unreachable_nodes == {"n1": ["n2", "n3", "n4"], "n3": ["n2"]}
    asyncio.run(cluster.propose(FenceNode("n4", 1)))
    assert view.unreachable_nodes == {"n1": ["n2", "n3"], "n3": ["n2"]}
    assert unreachable == {"n1": ["n2"], "n3": ["n2"]}
