"""What is done to a cluster: each fault strikes, lasts for a while, and is mended again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple

from goq import limits
from tests.process.chaos.cluster import ChaosCluster
from tests.support.cluster.links import Closed, Cut, Port
from tests.support.cluster.process_cluster import NAMES

Strike = Callable[[ChaosCluster, random.Random], None]
"""Does something to a cluster, and mends it before it returns."""

_SESSION_S = limits.NODE_SESSION_TIMEOUT_MS / 1000


class Fault(NamedTuple):
    """A kind of fault.

    ``keeps_majority``: two nodes can go on all the time. ``needs_disk``: a node has to have a disk
    of its own, which only some users may mount.
    """

    name: str
    strike: Strike
    keeps_majority: bool = True
    needs_disk: bool = False


def _last(chance: random.Random, least_s: float = 0.0, most_s: float = 3.0) -> None:
    """Let what was done last."""
    time.sleep(chance.uniform(least_s, most_s))


def killed(cluster: ChaosCluster, chance: random.Random) -> None:
    """End a node as a power switch would end its process, and start it again."""
    node = cluster.nodes[chance.choice(NAMES)]
    node.kill()
    _last(chance)
    node.start()


def two_killed(cluster: ChaosCluster, chance: random.Random) -> None:
    """End a majority."""
    nodes = [cluster.nodes[name] for name in chance.sample(NAMES, 2)]
    for node in nodes:
        node.kill()
    _last(chance)
    for node in nodes:
        node.start()


def all_killed(cluster: ChaosCluster, chance: random.Random) -> None:
    """End all nodes within a moment; they come back in any order."""
    nodes = [cluster.nodes[name] for name in chance.sample(NAMES, 3)]
    for node in nodes:
        node.kill()
    for node in chance.sample(nodes, 3):
        node.launch()
    for node in nodes:
        node.wait_ready()


def restarted(cluster: ChaosCluster, chance: random.Random) -> None:
    """Stop a node as an operator does, and start it again."""
    node = cluster.nodes[chance.choice(NAMES)]
    assert node.stop(seconds=60) == 0
    _last(chance)
    node.start()


def stood_still(cluster: ChaosCluster, chance: random.Random) -> None:
    """Stop a node's clock until others lead what it led; then it wakes and thinks that it leads."""
    node = cluster.nodes[chance.choice(NAMES)]
    node.pause()
    _last(chance, 1.5 * _SESSION_S, 4 * _SESSION_S)
    node.resume()


def blinked(cluster: ChaosCluster, chance: random.Random) -> None:
    """Stop a node's clock for about as long as it takes to be missed."""
    node = cluster.nodes[chance.choice(NAMES)]
    node.pause()
    _last(chance, 0.5 * _SESSION_S, 1.3 * _SESSION_S)
    node.resume()


def _cut(
    cluster: ChaosCluster,
    chance: random.Random,
    links: list[tuple[str, str]],
    port: Port | None = None,
    how: Cut = Cut.LATE,
) -> None:
    for link in links:
        cluster.links.cut(*link, port, how)
    _last(chance, _SESSION_S, 4 * _SESSION_S)
    cluster.links.mend()


def cut_off(cluster: ChaosCluster, chance: random.Random) -> None:
    """Cut a node off from both others; clients still reach it."""
    one, *others = chance.sample(NAMES, 3)
    _cut(cluster, chance, [link for o in others for link in ((one, o), (o, one))])


def deaf(cluster: ChaosCluster, chance: random.Random) -> None:
    """Let a node be heard but hear nothing."""
    one, *others = chance.sample(NAMES, 3)
    _cut(cluster, chance, [(other, one) for other in others])


def mute(cluster: ChaosCluster, chance: random.Random) -> None:
    """Let a node hear but not be heard."""
    one, *others = chance.sample(NAMES, 3)
    _cut(cluster, chance, [(one, other) for other in others])


def two_apart(cluster: ChaosCluster, chance: random.Random) -> None:
    """Cut the link of two nodes, whom the third still hears."""
    one, other, _ = chance.sample(NAMES, 3)
    _cut(cluster, chance, [(one, other), (other, one)])


def one_way(cluster: ChaosCluster, chance: random.Random) -> None:
    """Cut one direction of one link."""
    one, other, _ = chance.sample(NAMES, 3)
    _cut(cluster, chance, [(one, other)])


def _port_cut(cluster: ChaosCluster, chance: random.Random, port: Port) -> None:
    """Cut a node off at one port, in one direction or both; bytes are late, lost, or reset."""
    one, *others = chance.sample(NAMES, 3)
    hears, is_heard = chance.choice(((False, False), (True, False), (False, True)))
    links = [] if is_heard else [(one, other) for other in others]
    links += [] if hears else [(other, one) for other in others]
    _cut(cluster, chance, links, port, chance.choice(list(Cut)))


def http_cut(cluster: ChaosCluster, chance: random.Random) -> None:
    """Cut a node's calls and those to it; Raft stays."""
    _port_cut(cluster, chance, Port.HTTP)


def raft_cut(cluster: ChaosCluster, chance: random.Random) -> None:
    """Cut a node off from Raft; calls stay."""
    _port_cut(cluster, chance, Port.RAFT)


def port_closed(cluster: ChaosCluster, chance: random.Random) -> None:
    """Close one port of a node to the others."""
    cluster.links.close(
        chance.choice(NAMES), chance.choice(list(Port)), chance.choice(list(Closed))
    )
    _last(chance, _SESSION_S, 4 * _SESSION_S)
    cluster.links.mend()


def clock_off(cluster: ChaosCluster, chance: random.Random) -> None:
    """Start a node with another clock; correct it by a restart."""
    node = cluster.nodes[chance.choice(NAMES)]
    for ahead_ms in (chance.choice((-1, 1)) * chance.choice((400, 3000, 20_000)), 0):
        node.kill()
        node.clock_ahead_ms = ahead_ms
        node.start()
        _last(chance)


def disk_lost(cluster: ChaosCluster, chance: random.Random) -> None:
    """Replace a node by one of its name with an empty folder, once the others have everything.

    The operator takes the lost node out; the new one joins by itself.
    """
    cluster.wait_until_whole()
    name = chance.choice(NAMES)
    cluster.nodes[name].kill()
    cluster.wipe(name)
    if chance.random() < 0.5:
        cluster.nodes[name].launch()  # at once; nobody talks to it before the other has left
        cluster.take_out(name)
        cluster.nodes[name].wait_ready()
    else:
        cluster.take_out(name)
        cluster.nodes[name].start()
    cluster.wait_until_whole()


def filled(cluster: ChaosCluster, chance: random.Random) -> None:
    """Take the room on a node's disk until others lead what it led; then give it back."""
    assert cluster.disk is not None
    cluster.disk.fill(chance.choice((0, 4096, 100_000)))
    _last(chance, 0.0, 3 * _SESSION_S)
    cluster.disk.give_back()


FAULTS = (
    Fault("killed", killed),
    Fault("stood still", stood_still),
    Fault("cut off", cut_off),
    Fault("restarted", restarted),
    Fault("deaf", deaf),
    Fault("mute", mute),
    Fault("two apart", two_apart),
    Fault("one way", one_way),
    Fault("blinked", blinked),
    Fault("HTTP port cut", http_cut),
    Fault("Raft port cut", raft_cut),
    Fault("one port closed", port_closed),
    Fault("clock off", clock_off),
    Fault("disk lost", disk_lost),
    Fault("disk full", filled, needs_disk=True),
    Fault("two killed", two_killed, keeps_majority=False),
    Fault("all killed", all_killed, keeps_majority=False),
)
