"""Whole members on the loopback interface: they agree, remember, let in, part and hand over."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pysyncobj.syncobj as library
import pytest
from msgspec.structs import replace

from goq import limits
from goq.cluster.raft.driver import RaftTiming
from goq.cluster.raft.member import RaftMember
from goq.cluster.raft.node import RaftNode
from goq.cluster.raft.pysyncobj.hardened_sync_obj import HardenedSyncObj
from goq.cluster.raft.state_machine.state_machine import AppliedEntry
from goq.cluster.raft.transport.link import Link
from goq.cluster.raft.transport.transport import SecureTransport
from goq.errors import (
    Conflict,
    CorruptData,
    GoqError,
    InvalidInput,
    ShuttingDown,
    TimedOut,
    TooLarge,
    TooManyRequests,
    Unavailable,
)
from tests.support.cluster.raft.group import PATIENT, Running, member_specs
from tests.support.eventually import until

WAIT_S = 60.0


def run(test: Awaitable[None]) -> None:
    async def main() -> None:
        async with asyncio.timeout(2 * WAIT_S):
            await test

    asyncio.run(main())


@asynccontextmanager
async def group(
    folder: Path, count: int, timing: RaftTiming = PATIENT
) -> AsyncIterator[list[Running]]:
    specs = member_specs(count)
    members = [Running(spec, specs, folder, timing) for spec in specs]
    try:
        await asyncio.gather(*(member.start() for member in members))
        yield members
    finally:
        await asyncio.gather(*(member.stop() for member in members))


async def leader_of(members: list[Running]) -> Running:
    await until(lambda: any(member.node.is_leader for member in members))
    return next(member for member in members if member.node.is_leader)


def test_one_node_agrees_with_itself_and_remembers(tmp_path: Path) -> None:
    async def test() -> None:
        specs = member_specs(1)
        for life in range(3):
            member = await Running(specs[0], specs, tmp_path).start()
            assert await member.set(f"key {life}", "value") == {"set": f"key {life}"}
            await member.stop()
        member = await Running(specs[0], specs, tmp_path).start()
        await member.node.barrier(WAIT_S)
        assert member.rows() == {f"key {life}": ("value", 1) for life in range(3)}
        await member.stop()

    run(test())


def test_three_nodes_agree_whoever_is_asked(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 3) as members:
            sets = [
                member.set(f"{member.id} {number}", "x")
                for member in members
                for number in range(40)
            ]
            await asyncio.gather(*sets)
            for member in members:
                await member.node.barrier(WAIT_S)
            assert len(members[0].rows()) == 120
            assert members[0].rows() == members[1].rows() == members[2].rows()
            assert len({member.node.leader for member in members}) == 1

    run(test())


def test_what_the_machine_refuses_is_raised_where_it_was_proposed(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 3) as members:
            for member in members:
                with pytest.raises(Conflict, match="key is not to be set"):
                    await member.node.propose(["refuse", "key", "x"], WAIT_S)
                with pytest.raises(GoqError, match="ValueError"):
                    await member.node.propose(["fail", "key", "x"], WAIT_S)
            await members[0].set("other", "x")
            assert members[0].rows() == {"other": ("x", 1)}

    run(test())


def test_what_cannot_be_proposed_is_refused_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 1) as (member,):
            with pytest.raises(InvalidInput):
                await member.node.propose(object())
            room = limits.RAFT_COMMAND_BYTES_MAX - 100
            await member.set("fits", "x" * room)
            with pytest.raises(TooLarge):
                await member.set("too large", "x" * (room + 100))

    run(test())


def test_a_request_that_is_proposed_twice_is_applied_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 3) as members:
            request = members[0].node.new_proposal_id()
            results = [await member.set("key", "x", proposal_id=request) for member in members]
            assert results == [{"set": "key"}] * 3
            assert members[0].rows() == {"key": ("x", 1)}

    run(test())


def test_without_a_majority_nothing_is_applied_and_that_is_told(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 3) as members:
            leader = await leader_of(members)
            await leader.set("before", "x")
            others = [member for member in members if member is not leader]
            for member in others:
                await member.node.stop()
            with pytest.raises(TimedOut):
                await leader.node.propose(["set", "key", "x"], 0.5)
            await until(lambda: not leader.node.is_leader)
            with pytest.raises(Unavailable):
                await leader.node.propose(["set", "key", "x"], 0.5)
            assert leader.rows() == {"before": ("x", 1)}

    run(test())


def first_index(member: Running) -> int:
    """Return where the log of a member begins: earlier entries are in its state alone."""
    driver = member.node._driver
    assert driver is not None
    raft = driver._raft
    assert raft is not None
    return raft._journal().first.index


def test_a_follower_that_was_away_gets_what_it_missed_as_a_snapshot(tmp_path: Path) -> None:
    async def test() -> None:
        timing = RaftTiming(0.05, 0.6, 1.2, 1.8, log_entries=20, chunk_bytes=1000)
        specs = member_specs(3)
        members = [await Running(spec, specs, tmp_path, timing).start() for spec in specs]
        leader = await leader_of(members)
        away = next(member for member in members if member is not leader)
        await leader.set("before", "x")
        await away.stop()
        await asyncio.gather(*(leader.set(f"key {n}", "x" * 100) for n in range(200)))
        others = [member for member in members if member is not away]
        await until(lambda: all(first_index(member) > 20 for member in others))
        applied: list[AppliedEntry] = []
        back = Running(away.spec, [], tmp_path, timing, on_applied=applied.extend)
        assert len(back.rows()) < 10
        await back.start()
        await back.node.barrier(WAIT_S)
        assert len(back.rows()) == 201
        assert back.rows() == leader.rows()
        assert [news.index for news in applied if news.request is None]
        members[members.index(away)] = back
        await asyncio.gather(*(member.stop() for member in members))

    run(test())


def test_a_cluster_grows_from_one_node_and_shrinks_again(tmp_path: Path) -> None:
    async def test() -> None:
        specs = member_specs(3)
        first = await Running(specs[0], specs[:1], tmp_path).start()
        await first.set("alone", "x")
        members = [first]
        for count in (2, 3):
            newcomer = await Running(specs[count - 1], specs[: count - 1], tmp_path).start()
            await first.node.add_member(specs[count - 1], WAIT_S)
            members.append(newcomer)
            await newcomer.node.barrier(WAIT_S)
            assert newcomer.rows()["alone"] == ("x", 1)
        assert [sorted(member.node.status.members) for member in members] == [sorted(specs)] * 3
        await first.node.add_member(specs[2], WAIT_S)  # it is one already
        leader = await leader_of(members)
        gone = next(member for member in members if member is not leader)
        await leader.node.remove_member(gone.id, WAIT_S)
        await gone.stop()
        members.remove(gone)
        await leader.set("without", "x")
        with pytest.raises(Conflict, match="transfer the leadership first"):
            await leader.node.remove_member(leader.id, WAIT_S)
        await asyncio.gather(*(member.stop() for member in members))

    run(test())


def test_a_removed_id_comes_again_with_another_disk_and_not_with_the_old_one(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with group(tmp_path, 3) as members:
            leader = await leader_of(members)
            await leader.set("before", "x")
            gone, other = (member for member in members if member is not leader)
            await gone.stop()
            new = f"{gone.spec}/d2"
            with pytest.raises(Conflict, match="is already a member"):
                await leader.node.add_member(new, WAIT_S)
            await leader.node.remove_member(gone.id, WAIT_S)
            specs = [leader.spec, other.spec]
            again = await Running(new, specs, tmp_path / "again").start()
            await leader.node.add_member(new, WAIT_S)
            await again.node.barrier(WAIT_S)
            assert again.rows() == leader.rows()
            assert new in other.node.status.members
            await again.stop()
            for disk in ("", "/d1"):
                old = await Running(f"{gone.spec}{disk}", specs, tmp_path).start()
                await until(lambda old=old: old.node.status.rejected_by)
                await until(lambda: gone.id in leader.node.status.rejected_members)
                assert old.node.status.leader is None
                await old.stop()
            again = members[members.index(gone)] = Running(new, [], tmp_path / "again")
            await again.start()
            await again.node.barrier(WAIT_S)

    run(test())


def test_a_node_that_is_no_member_is_not_heard(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 2) as members:
            leader = await leader_of(members)
            await leader.set("key", "x")
            term = leader.node.status.term
            specs = [member.spec for member in members]
            stranger = Running(member_specs(3)[2], specs, tmp_path)
            await stranger.start()
            with pytest.raises(Unavailable):
                await stranger.node.propose(["set", "key", "y"], 2.0)
            assert stranger.node.status.term == 0  # it did not even stand for election
            assert leader.node.status.term == term
            await stranger.stop()

    run(test())


def test_the_leader_hands_over_to_whom_it_is_told(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 3) as members:
            leader = await leader_of(members)
            await leader.set("key", "x")
            follower = next(member for member in members if member is not leader)
            with pytest.raises(Conflict, match="is not the leader"):
                await follower.node.transfer_leadership()
            await leader.node.transfer_leadership(follower.id, WAIT_S)
            assert not leader.node.is_leader
            assert await leader.set("key", "y")
            assert follower.rows()["key"][0] == "y"

    run(test())


def test_members_are_those_in_the_log_whatever_a_node_is_started_with(tmp_path: Path) -> None:
    async def test() -> None:
        specs = member_specs(3)
        members = [await Running(spec, specs, tmp_path).start() for spec in specs]
        await members[0].set("key", "x")
        await asyncio.gather(*(member.stop() for member in members))
        alone = await Running(specs[0], [], tmp_path).start()
        with pytest.raises(Unavailable):
            await alone.node.propose(["set", "key", "y"], 2.0)
        assert sorted(alone.node.status.members) == sorted(specs)
        await alone.stop()

    run(test())


def test_news_come_in_order_on_the_event_loop(tmp_path: Path) -> None:
    async def test() -> None:
        applied: list[AppliedEntry] = []
        leaders: list[str | None] = []
        specs = member_specs(1)
        member = Running(
            specs[0],
            specs,
            tmp_path,
            on_applied=applied.extend,
            on_status_change=lambda view: leaders.append(view.leader),
        )
        await member.start()
        await asyncio.gather(*(member.set(f"key {n}", "x") for n in range(50)))
        await until(lambda: len(applied) == 50)
        assert [news.index for news in applied] == sorted(news.index for news in applied)
        keys = [news.request.command[1] for news in applied if news.request]
        assert sorted(keys) == sorted(f"key {n}" for n in range(50))
        assert leaders[-1] == "n1"
        await member.stop()

    run(test())


def test_who_waits_when_the_node_stops_is_told(tmp_path: Path) -> None:
    async def test() -> None:
        specs = member_specs(2)
        member = await Running(specs[0], specs, tmp_path).start()
        waiting = asyncio.create_task(member.set("key", "x"))
        await asyncio.sleep(0)
        await member.stop()
        with pytest.raises((ShuttingDown, Unavailable)):
            await waiting

    run(test())


def test_more_commands_than_may_wait_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RAFT_COMMANDS_WAITING_MAX", 5)

    async def test() -> None:
        specs = member_specs(2)
        member = await Running(specs[0], specs, tmp_path).start()
        waiting = [asyncio.create_task(member.set(f"key {n}", "x")) for n in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests):
            await member.set("one more", "x")
        other = await Running(specs[1], specs, tmp_path).start()
        await asyncio.gather(*waiting)
        assert await member.set("now", "x")
        await asyncio.gather(member.stop(), other.stop())

    run(test())


def test_a_cluster_has_no_more_members_than_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with group(tmp_path, 2) as members:
            monkeypatch.setattr(limits, "RAFT_MEMBERS_MAX", 2)
            with pytest.raises(Conflict, match="at most"):
                await members[0].node.add_member("n3=127.0.0.1:1", WAIT_S)
            assert len(members[0].node.status.members) == 2

    run(test())


def test_a_machine_that_fails_stops_the_member_and_that_is_told(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 1) as (member,):
            await member.set("key", "x")
            other = sqlite3.connect(tmp_path / "n1" / "state.db")
            other.execute("DROP TABLE kv")
            other.commit()
            other.close()
            with pytest.raises(TimedOut, match="has stopped"):  # the command is in the log
                await member.set("key", "y")
            assert "no such table" in (member.node.status.failure or "")
            with pytest.raises(Unavailable):
                await member.node.barrier()

    run(test())


def test_a_member_whose_log_is_gone_does_not_start(tmp_path: Path) -> None:
    async def test() -> None:
        specs = member_specs(1)
        member = await Running(specs[0], specs, tmp_path).start()
        await member.set("key", "x")
        await member.stop()
        for file in (tmp_path / "n1" / "raft").iterdir():
            file.unlink()
        again = Running(specs[0], specs, tmp_path)
        with pytest.raises(CorruptData, match="join it again with an empty"):
            await again.start()
        await again.stop()

    run(test())


def test_an_address_that_cannot_be_had_is_told_at_the_start(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 1) as (member,):
            second = Running(f"n9={RaftMember(member.spec).address}", [], tmp_path)
            with pytest.raises(OSError, match="address already in use"):
                await second.start()
            await second.stop()

    run(test())


def test_a_disk_that_the_log_registers_is_known_before_that_entry_is_applied(
    tmp_path: Path,
) -> None:
    """After a power cut a state may be behind its log: see the simulator's lost disks."""

    def knowing(member: Running, disk: str) -> Running:
        member.node._settings = replace(
            member.node._settings,
            disk=disk,
            registered_disk_in=lambda command: (command[1], command[2]),
        )
        return member

    async def test() -> None:
        specs = member_specs(2)
        n1 = await knowing(Running(specs[0], specs, tmp_path), "d1").start()
        n2 = await knowing(Running(specs[1], specs, tmp_path), "d2").start()
        await until(lambda: n1.node.is_leader or n2.node.is_leader)
        if n2.node.is_leader:
            await n2.node.transfer_leadership("n1")
        await n2.stop()
        with pytest.raises((TimedOut, Unavailable)):
            await n1.node.propose(["set", "n2", "d2"], 0.3)
        assert n1.rows() == {}
        other = await knowing(Running(specs[1], specs, tmp_path / "other"), "another").start()
        await until(lambda: n1.node.status.rejected_members == ("n2",))
        assert n1.rows() == {}
        await other.stop()
        n2 = await knowing(Running(specs[1], specs, tmp_path), "d2").start()
        await until(lambda: n1.rows() == {"n2": ("d2", 1)})
        await n2.stop()
        await n1.stop()

    run(test())


def test_a_member_without_a_connection_is_shown_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RAFT_UNCONNECTED_S", 0.2)

    async def test() -> None:
        async with group(tmp_path, 3) as members:
            leader = await leader_of(members)
            others = [member for member in members if member is not leader]
            await until(lambda: not any(member.node.status.unconnected for member in members))
            gone, stays = others
            await gone.node.stop()
            for member in (leader, stays):
                await until(lambda member=member: member.node.status.unconnected == {gone.id})

    run(test())


@pytest.mark.parametrize("is_whole_process", [True, False])
def test_a_leader_gives_the_lead_away_if_its_owner_stands_and_not_if_all_of_it_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_whole_process: bool,
) -> None:
    monkeypatch.setattr(limits, "RAFT_OWNER_SIGN_S", 600)

    async def test() -> None:
        async with group(tmp_path, 1) as members:
            leader = await leader_of(members)
            driver = leader.node._driver
            assert driver is not None

            def stand() -> None:
                time.sleep(0.4 if is_whole_process else 0)
                driver._owner_seen_s -= 60

            seen_s = driver._owner_seen_s
            leader.node._call_raft_loop(stand)
            await until(lambda: driver._owner_seen_s > seen_s)

    run(test())
    assert ("stood still" in caplog.text) != is_whole_process


def test_members_at_rest_do_nothing_when_heartbeats_come_and_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each heartbeat made a tick of each follower, and its two answers two of the leader."""
    ticks: list[bool] = []
    frames: list[bytes] = []
    tick, on_frame = HardenedSyncObj.doTick, SecureTransport.on_frame

    def counted(node: HardenedSyncObj, wait_s: float) -> None:
        ticks.append(bool(node._isLeader()))
        tick(node, wait_s)

    def heard(transport: SecureTransport, link: Link, frame: bytes) -> None:
        frames.append(frame)
        on_frame(transport, link, frame)

    monkeypatch.setattr(HardenedSyncObj, "doTick", counted)
    monkeypatch.setattr(SecureTransport, "on_frame", heard)

    async def test() -> None:
        async with group(tmp_path, 3) as members:
            leader = await leader_of(members)
            await leader.set("a", "1")
            await asyncio.gather(*(member.node.barrier(WAIT_S) for member in members))
            await until(lambda: leader.node.status.reachable == {m.id for m in members})
            heard_s = [member.node.status.in_touch_s for member in members]
            frames.clear()
            ticks.clear()
            await until(lambda: len(frames) >= 160)  # 40 heartbeats to two, and their answers
            assert ticks.count(True) <= 60
            assert ticks.count(False) <= 40
            for member, before_s in zip(members, heard_s, strict=True):
                assert (member.node.status.in_touch_s or 0.0) > (before_s or 0.0)
            await leader.set("b", "2")

    run(test())


@pytest.mark.parametrize("ahead_s", [1000.0, -1000.0])
def test_silence_is_told_by_one_clock_however_far_others_are_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    """The library's clock follows no NTP, an event loop's does: they drift apart for ever."""
    monotonic = library.monotonicTime
    monkeypatch.setattr(library, "monotonicTime", lambda: monotonic() + ahead_s)

    async def test() -> None:
        async with group(tmp_path, 2) as members:
            leader = await leader_of(members)
            await leader.set("a", "1")
            for member in members:
                await member.node.barrier(WAIT_S)
                assert -100.0 < member.node.silent_s() < 100.0

    run(test())


@pytest.mark.parametrize(
    ("silent_s", "is_cut_off"),
    [
        (0.0, False),
        (limits.RAFT_CUT_OFF_S, False),  # an election takes less
        (math.nextafter(limits.RAFT_CUT_OFF_S, math.inf), True),
        (1e9, True),
        (math.inf, False),  # since its start: it may hear the others in a moment
    ],
)
def test_a_member_that_has_not_heard_its_group_for_long_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_s: float, is_cut_off: bool
) -> None:
    monkeypatch.setattr(RaftNode, "silent_s", lambda _: silent_s)

    async def test() -> None:
        async with group(tmp_path, 1) as (member,):
            assert member.node.is_cut_off() is is_cut_off

    run(test())


def test_a_leader_at_rest_begins_with_a_command_of_another_member_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for the tick of the leader's next heartbeat."""
    rested: list[bool] = []
    apply = HardenedSyncObj._applyCommand

    def watched(node: HardenedSyncObj, *arguments: Any) -> None:
        was_at_rest = node.is_at_rest()
        apply(node, *arguments)
        if was_at_rest and node._isLeader():  # a member that passes it on may rest as well
            rested.append(node.is_at_rest())

    monkeypatch.setattr(HardenedSyncObj, "_applyCommand", watched)

    async def test() -> None:
        async with group(tmp_path, 3) as members:
            leader = await leader_of(members)
            other = next(member for member in members if member is not leader)
            await leader.set("a", "1")
            while not rested:
                await other.set("b", "2")
            assert not any(rested)

    run(test())
