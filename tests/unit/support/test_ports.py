"""Ports that tests draw are not given to two of them."""

from __future__ import annotations

from tests.support.node.ports import free_port, free_ports


def test_a_port_that_was_given_is_not_given_again_before_its_node_can_listen() -> None:
    found = [free_port() for _ in range(300)] + free_ports(3) + [free_port() for _ in range(190)]
    assert len(set(found)) == len(found)


def test_ports_at_a_distance_are_given_with_the_first() -> None:
    first = free_port(besides=(1, 2))
    later = {free_port() for _ in range(400)}
    assert not later & {first, first + 1, first + 2}
