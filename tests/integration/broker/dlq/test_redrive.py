"""Search, redrive and purge of dead letters, against a list of the letters that were put there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from goq import limits
from goq.broker.broker import Broker
from goq.broker.dlq.redrive import RemovalRequest, RemovalResult, purge, redrive
from goq.broker.dlq.search import DeadLetterQuery, DeadLetterSearch
from goq.broker.outbox.dead_letter_headers import (
    DeadLetterOrigin,
    dead_letter_headers_of,
    placeholder_headers,
    read_dead_letter,
    redriven_headers,
)
from goq.broker.topic.publisher import RoutedMessage
from goq.broker.topic.topic import Topic
from goq.errors import TimedOut, TooManyRequests
from goq.frame.hashes import key_hash
from goq.model import Header, Message
from goq.units import format_time_us
from tests.support.broker.copies import publish_copies
from tests.support.broker.harness import broker_on, leased, options, run
from tests.support.eventually import until

PARTITIONS = 3
DAY_US = 86_400_000_000
ALL = RemovalRequest(DeadLetterQuery(), (-1, -1), 10_000)
Place = tuple[int, int]


class Letter(NamedTuple):
    """A message of the dead-letter topic; without a group a producer has published it there."""

    place: Place
    key: bytes | None
    group: str
    origin_topic: str
    reason: str
    cause: str
    died_us: int
    redrives: int
    is_lost: bool

    @property
    def id(self) -> str:
        return f"t.dlq:{self.place[0]}:{self.place[1]}"

    @property
    def origin_id(self) -> str:
        return f"{self.origin_topic}:1:{self.place[1]}"

    def headers(self) -> list[Header]:
        if not self.group:  # what a producer claims does not count
            origin = DeadLetterOrigin("t:1:0", "g", 3, "nacked", format_time_us(0), "bad")
            return dead_letter_headers_of([("goq-redrives", b"99")], origin, lost="damaged")
        headers: list[Header] = [("own", b"1")]
        if self.redrives:
            headers = redriven_headers(
                [("goq-redrives", b"%d" % (self.redrives - 1))], "x:0:1", "x"
            )
        time = format_time_us(self.died_us)
        origin = DeadLetterOrigin(self.origin_id, self.group, 3, self.cause, time, self.reason)
        return dead_letter_headers_of(headers, origin, lost="damaged" if self.is_lost else "")

    def matches(self, query: DeadLetterQuery) -> bool:
        if query.partition not in (None, self.place[0]) or query.key not in (None, self.key):
            return False
        if query.ids and not query.ids & {self.id, self.origin_id if self.group else ""}:
            return False
        about_origin = (
            query.group in (None, self.group),
            query.reason is None or query.reason in self.reason,
            query.cause in (None, self.cause),
            query.origin_topic in (None, self.origin_topic),
            query.from_us is None or query.from_us <= self.died_us,
            query.to_us is None or self.died_us < query.to_us,
        )
        asked = (query.group, query.reason, query.cause, query.origin_topic)
        if not self.group:
            return {*asked, query.from_us, query.to_us} == {None}
        return all(about_origin)


class Letters:
    """The dead letters of a topic, as they were put there, and those that are still there."""

    def __init__(self, broker: Broker, dead: Topic, target: Topic, letters: list[Letter]) -> None:
        self.broker, self.dead, self.target = broker, dead, target
        self.left = {letter.place: letter for letter in letters}

    def matching(self, query: DeadLetterQuery, after: Place = (-1, -1)) -> list[Place]:
        places = sorted(place for place in self.left if place > after)
        return [place for place in places if self.left[place].matches(query)]

    async def found(self, query: DeadLetterQuery, after: Place = (-1, -1)) -> list[Place]:
        search, found = DeadLetterSearch(self.dead, query, after), []
        async for each in search.run():
            place = each.partition, each.offset
            letter = self.left[place]
            assert each.message.key == letter.key
            assert (each.letter.origin is None) == (not letter.group)
            assert (each.letter.redrives, bool(each.letter.lost)) == (
                letter.redrives,
                letter.is_lost,
            )
            found.append(place)
        assert search.next is None
        return found


def random_letter(chance: Random, place: Place) -> Letter:
    key = chance.choice((None, b"a", b"b"))
    if chance.random() < 0.15:
        return Letter(place, key, "", "", "", "", 0, 0, is_lost=False)
    return Letter(
        place,
        key,
        chance.choice("gh"),
        chance.choice("tu"),
        chance.choice(("", "bad input", "bad")),
        chance.choice(("nacked", "expired")),
        chance.randrange(5) * DAY_US,
        chance.choice((0, 0, 1, limits.REDRIVES_MAX - 1, limits.REDRIVES_MAX)),
        chance.random() < 0.1,
    )


@asynccontextmanager
async def letters_on(path: Path, seed: int, count: int = 40) -> AsyncIterator[Letters]:
    chance = Random(seed)
    async with broker_on(path, partitions=PARTITIONS) as broker:
        target = await broker.topic_admin.topic_for_publish("t")
        dead = await broker.topic_admin.topic_for_publish("t.dlq")
        ends, letters = [0] * PARTITIONS, list[Letter]()
        copies, published = list[RoutedMessage](), list[RoutedMessage]()

        async def flush() -> None:
            if copies:
                await publish_copies(dead, copies)
            if published:
                await dead.publisher.publish_messages(published)
            copies.clear()
            published.clear()

        for _ in range(count):
            number = chance.randrange(PARTITIONS)
            letter = random_letter(chance, (number, ends[number]))
            ends[number] += 1
            letters.append(letter)
            if (published if letter.group else copies) or chance.random() < 0.3:
                await flush()
            (copies if letter.group else published).append(
                RoutedMessage(number, Message(letter.id.encode(), letter.key, letter.headers()))
            )
        await flush()
        yield Letters(broker, dead, target, letters)


def random_query(chance: Random, letters: Letters) -> DeadLetterQuery:
    def maybe(*values: object) -> object:
        return chance.choice(values) if chance.random() < 0.3 else None

    ids = frozenset[str]()
    if chance.random() < 0.4:
        some = chance.sample(sorted(letters.left.values()), min(3, len(letters.left)))
        ids = frozenset(
            each.origin_id if each.group and chance.random() < 0.4 else each.id for each in some
        )
    asked = {
        "group": maybe("g", "h"),
        "reason": maybe("bad", "input", ""),
        "cause": maybe("nacked", "expired"),
        "key": maybe(b"a", b"c"),
        "from_us": maybe(0, DAY_US, 2 * DAY_US + 1),
        "to_us": maybe(DAY_US, 3 * DAY_US, 3 * DAY_US + 1),
        "partition": maybe(0, 1, 2, 7),
        "origin_topic": maybe("t", "u"),
    }
    return DeadLetterQuery(ids=ids, **asked)


def places_of(letters: Letters) -> Iterator[Place]:
    yield (-1, -1)
    yield from sorted(letters.left)


@pytest.mark.parametrize("seed", range(2))
def test_a_search_finds_what_looking_at_each_letter_finds(tmp_path: Path, seed: int) -> None:
    async def test() -> None:
        chance = Random(seed)
        async with letters_on(tmp_path, seed) as letters:
            for _ in range(60):
                query = random_query(chance, letters)
                after = chance.choice(list(places_of(letters)))
                assert await letters.found(query, after) == letters.matching(query, after), query

    run(test())


@pytest.mark.parametrize("seed", range(2))
def test_letters_that_were_purged_are_found_no_more(tmp_path: Path, seed: int) -> None:
    async def test() -> None:
        chance = Random(seed)
        async with letters_on(tmp_path, seed) as letters:
            while letters.left:
                query = random_query(chance, letters)
                count = chance.choice((1, 2, 100))
                expected = letters.matching(query)
                removed = expected[:count]
                for dry_run in (True, False):
                    request = RemovalRequest(query, (-1, -1), count, dry_run=dry_run)
                    result = await purge(letters.dead, request)
                    at = removed[-1] if len(removed) == count else None
                    assert result == RemovalResult(len(removed), len(removed), 0, 0, 0, at)
                    if dry_run:
                        assert await letters.found(query) == expected
                for place in removed:
                    del letters.left[place]
                assert await letters.found(DeadLetterQuery()) == letters.matching(DeadLetterQuery())

    run(test())


async def redriven(letters: Letters, count: int) -> dict[str, tuple[int, Message]]:
    """Wait for so many messages of the target; return partition and message, by their values."""
    found = dict[str, tuple[int, Message]]()
    partitions = letters.target.partitions
    await until(lambda: sum(partition.end_offset for partition in partitions) >= count)
    for partition in partitions:
        reading = partition.message_reader.read(0, partition.end_offset)
        for view in reading.frames:
            for message in view.messages(0, view.header.message_count):
                assert message.value is not None
                found[message.value.decode()] = partition.identity.number, message
    return found


@pytest.mark.parametrize(
    ("force", "to_origin"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_a_redrive_copies_the_letters_that_may_go_and_counts_the_others(
    tmp_path: Path, force: bool, to_origin: bool
) -> None:
    async def test() -> None:
        async with letters_on(tmp_path, 7, count=60) as letters:
            every = [letters.left[place] for place in letters.matching(DeadLetterQuery())]
            foreign = [each for each in every if to_origin and not each.group]
            lost = [each for each in every if each.is_lost]
            others = [each for each in every if each not in foreign and each not in lost]
            looped = [e for e in others if e.redrives >= limits.REDRIVES_MAX and not force]
            going = [each for each in others if each not in looped]
            assert all((lost, going, force or looped, foreign or not to_origin))
            request = RemovalRequest(
                DeadLetterQuery(), (-1, -1), 10_000, force=force, to_origin=to_origin
            )
            result = await redrive(letters.dead, letters.target, 5, request)
            counts = (len(every), len(going), len(looped), len(lost), len(foreign))
            assert result == RemovalResult(*counts, None)
            found = await redriven(letters, len(going))
            assert found.keys() == {each.id for each in going}
            for letter in going:
                number, message = found[letter.id]
                home = letter.place[0] if letter.key is None else key_hash(letter.key) % PARTITIONS
                assert (number, message.key) == (home, letter.key)
                told = read_dead_letter(message.headers)
                assert told.redrives == letter.redrives + 1
                assert told.redriven_from == letter.id
                del letters.left[letter.place]
            assert await letters.found(DeadLetterQuery()) == letters.matching(DeadLetterQuery())

    run(test())


def test_a_redrive_in_steps_takes_each_letter_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with letters_on(tmp_path, 3) as letters:
            query, at, removed, steps = DeadLetterQuery(cause="nacked"), (-1, -1), 0, 0
            expected = [each for each in letters.matching(query) if not letters.left[each].is_lost]
            next_place: Place | None = at
            while next_place is not None:
                request = RemovalRequest(query, next_place, 4, force=True)
                result = await redrive(letters.dead, letters.target, 5, request)
                assert result.removed == min(4, len(expected) - removed)
                removed += result.removed
                steps += 1
                assert result.next is None or result.next == expected[removed - 1]
                next_place = result.next
            assert (removed, steps) == (len(expected), len(expected) // 4 + 1)
            found = await redriven(letters, removed)
            assert found.keys() == {letters.left[place].id for place in expected}

    run(test())


@pytest.mark.parametrize("in_turns", [False, True])
def test_two_redrives_at_once_send_no_letter_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_turns: bool
) -> None:
    all_searched, draw = asyncio.Barrier(3), Random(1)

    class OneLetter:
        """A slice of time that ends after each letter; the first begins once all have searched.

        Now one redrive is ahead, then another.
        """

        is_over = True
        began = False

        async def next(self) -> None:
            if not self.began:
                await all_searched.wait()
            self.began = True
            for _ in range(draw.randrange(5)):
                await asyncio.sleep(0)

    if in_turns:
        monkeypatch.setattr("goq.broker.dlq.redrive._RECORDED_AT_ONCE", 1)
        monkeypatch.setattr("goq.broker.dlq.redrive.TimeSlice", OneLetter)

    async def test() -> None:
        async with letters_on(tmp_path, 4) as letters:
            request = RemovalRequest(DeadLetterQuery(group="g"), (-1, -1), 10_000, force=True)
            going = [
                each for each in letters.matching(request.query) if not letters.left[each].is_lost
            ]
            results = await asyncio.gather(
                *(redrive(letters.dead, letters.target, 5, request) for _ in range(3))
            )
            removed = [result.removed for result in results]
            assert sum(removed) == len(going)
            assert sum(map(bool, removed)) > 1 or not in_turns
            await redriven(letters, len(going))
            await until(lambda: not any(p.outbox_entries for p in letters.dead.partitions))
            assert sum(p.end_offset for p in letters.target.partitions) == len(going)

    run(test())


def test_consumers_of_dead_letters_get_none_that_was_purged(tmp_path: Path) -> None:
    async def test() -> None:
        async with letters_on(tmp_path, 5) as letters:
            waiting = letters.dead.receiver.receive("g", options(100))
            first = leased(await waiting)
            assert first
            await purge(letters.dead, ALL)
            assert leased(await letters.dead.receiver.receive("h", options(100))) == []

    run(test())


def test_letters_are_removed_from_all_partitions_or_refused_by_all(tmp_path: Path) -> None:
    async def test() -> None:
        async with letters_on(tmp_path, 5) as letters:
            before = await letters.found(DeadLetterQuery())
            assert {partition for partition, _ in before} == set(range(PARTITIONS))
            last = letters.dead.partitions[PARTITIONS - 1]

            def full() -> None:
                raise TooManyRequests("too many bytes wait to be written")

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(last, "check_room", full)
                with pytest.raises(TooManyRequests):
                    await purge(letters.dead, ALL)
            assert await letters.found(DeadLetterQuery()) == before

    run(test())


def test_a_removal_that_is_refused_midway_has_an_unknown_outcome(tmp_path: Path) -> None:
    async def test() -> None:
        async with letters_on(tmp_path, 5) as letters:
            before = await letters.found(DeadLetterQuery())
            last, woken = letters.dead.partitions[PARTITIONS - 1], list[bool]()

            def full(_events: object) -> None:
                raise TooManyRequests("too many bytes wait to be written")

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(last, "record", full)
                patched.setattr(letters.dead.receiver, "wake", lambda: woken.append(True))
                with pytest.raises(TimedOut, match="not known whether this was done: too many"):
                    await purge(letters.dead, ALL)
                assert woken  # who waits behind the letters that are removed
                left = [place for place in before if place[0] == PARTITIONS - 1]
                assert await letters.found(DeadLetterQuery()) == left
                with pytest.raises(TooManyRequests):
                    await purge(letters.dead, ALL)  # nothing is removed before the refusal

    run(test())


def test_placeholders_of_lost_letters_are_lost_letters(tmp_path: Path) -> None:
    assert read_dead_letter(placeholder_headers("t:0:1", "damaged")).lost == "damaged"


@pytest.mark.parametrize("bound", ["DEAD_LETTERS_SCANNED_MAX", "DEAD_LETTERS_SCANNED_BYTES_MAX"])
def test_a_search_reads_a_bounded_part_and_tells_where_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(limits, bound, 5)

    async def test() -> None:
        async with letters_on(tmp_path, 6) as letters:
            query = DeadLetterQuery(reason="bad")
            found, after, searches = list[Place](), (-1, -1), 0
            while True:
                search = DeadLetterSearch(letters.dead, query, after)
                async for each in search.run():
                    found.append((each.partition, each.offset))
                searches += 1
                if search.next is None:
                    break
                assert search.next > after
                after = search.next
            assert found == letters.matching(query)
            assert searches >= PARTITIONS

    run(test())
