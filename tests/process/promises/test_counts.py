"""The counts of a group at rest are those of the ledger, now and asked for later as of then."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.eventually import eventually
from tests.support.ledger.promises.ledger import DONE, Got, Ledger, read_log
from tests.support.ledger.promises.rounds import Round, on, one_round, report, rounds
from tests.support.ledger.promises.storm import killed, stopped
from tests.support.ledger.promises.wire import Wire, as_rfc, now_us

PARTITIONS = 2
NAMES = ("lag", "leased", "retry", "scheduled", "dead", "ready")
FAR_MS = 3_600_000


class Books:
    """What each message must be, by its id."""

    def __init__(self) -> None:
        self.state: dict[str, str] = {}
        self.got: dict[str, Got] = {}
        self.deaths = 0
        self.attempts: Counter[str] = Counter()

    def die(self, mid: str) -> None:
        self.state[mid] = "dead"
        self.deaths += 1

    def expected(self) -> dict[str, int]:
        counts = Counter(self.state.values())
        names = {name: counts[name] for name in NAMES} | {"dead": self.deaths}
        names["lag"] = counts["ready"] + counts["leased"] + counts["retry"]
        return names


@on(1)
@rounds
def test_counts_at_rest_are_those_of_the_ledger(
    node_count: int, effort: int, tmp_path: Path
) -> None:
    found: list[str] = []
    with one_round(tmp_path, effort, node_count) as each:
        each.create(
            PARTITIONS, delivery__max_attempts="3", delivery__backoff__initial="1h",
            delivery__backoff__max="1h", delivery__ordering="none",
        )  # fmt: skip
        ledger = Ledger(each.topic, "g")
        books = Books()
        past: list[tuple[int, dict[str, Any]]] = []
        publish(each, ledger, books)
        receive(each, ledger, books)
        for number in range(80 * effort):
            step = each.chance.choices(STEPS, WEIGHTS)[0]
            step(each, ledger, books)
            if each.chance.random() < 0.04:
                each.chance.choice((killed, stopped))(each.chance.choice(each.nodes), each.chance)
            live = settled_counts(ledger, each.wire, books)
            shown = {name: live[name] for name in NAMES}
            if shown != books.expected():
                found.append(f"step {number} {step.__name__}: {shown}, not {books.expected()}")
                break
            summed = {n: sum(p[n] for p in live["partitions"]) for n in NAMES}
            if summed != shown:
                found.append(f"step {number}: partitions give {summed}, the group {shown}")
            past.append((now_us(), shown))
        found += check_past(each, ledger, past)
        found += check_states(each, ledger, books)
    report(found, ledger.summary())


def settled_counts(ledger: Ledger, wire: Wire, books: Books) -> Any:
    """Return the counts once copies of the dead have arrived."""
    deaths = books.expected()["dead"]
    eventually(lambda: ledger.counts(wire)["dead"] >= deaths, f"{deaths} are dead")
    return ledger.counts(wire)


def check_past(each: Round, ledger: Ledger, past: list[tuple[int, dict[str, Any]]]) -> list[str]:
    found = []
    for time_us, shown in each.chance.sample(past, min(50, len(past))):
        then = ledger.counts(each.wire, as_rfc(time_us))
        seen = {name: then[name] for name in NAMES}
        if seen != shown:
            found.append(f"as of {as_rfc(time_us)}: {seen}, and then it was {shown}")
    return found


def check_states(each: Round, ledger: Ledger, books: Books) -> list[str]:
    found = []
    for state in ("ready", "leased", "retry", "scheduled", "cancelled", "done"):
        ids = set()
        after = ""
        while True:
            path = f"/v1/topics/t/groups/g/peek?state={state}&limit=50{after}"
            page = each.wire.must("GET", path)
            ids |= {message["id"] for message in page["messages"]}
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        names = ("done", "dead") if state == "done" else (state,)
        wanted = {mid for mid, is_ in books.state.items() if is_ in names}
        if ids != wanted:
            found.append(f"peek {state}: too many {ids - wanted}, missing {wanted - ids}")
    return found


# Steps


def publish(each: Round, ledger: Ledger, books: Books) -> None:
    def one() -> dict[str, Any]:
        said: dict[str, Any] = {"partition": each.chance.randrange(PARTITIONS)}
        if each.chance.random() < 0.2:
            said["delay"] = "1h"
        if each.chance.random() < 0.3:
            said["priority"] = each.chance.choice(("high", "low"))
        if each.chance.random() < 0.3:
            said["tenant"] = each.chance.choice(("a", "b"))
        if each.chance.random() < 0.2:
            said["key"] = each.chance.choice("xyz")
        return said

    for row in ledger.publish(each.wire, [one() for _ in range(each.chance.randint(1, 12))]):
        assert row.outcome == DONE
        books.state[row.id] = "scheduled" if "delay" in row.said else "ready"


def receive(each: Round, ledger: Ledger, books: Books) -> None:
    most = each.chance.randint(1, 15)
    for got in ledger.receive(each.wire, "c", most=most, wait_ms=0, visibility_ms=FAR_MS):
        assert books.state[got.id] == "ready", (got, books.state[got.id])
        books.state[got.id] = "leased"
        books.attempts[got.id] += 1
        assert got.attempt == books.attempts[got.id], (got, books.attempts[got.id])
        books.got[got.id] = got


def held(each: Round, books: Books) -> list[Got]:
    ids = [mid for mid, state in books.state.items() if state == "leased"]
    chosen = each.chance.sample(ids, min(len(ids), each.chance.randint(1, 6)))
    return [books.got[mid] for mid in chosen]


def ack(each: Round, ledger: Ledger, books: Books) -> None:
    for row in ledger.settle(each.wire, "ack", held(each, books)):
        assert row.outcome == DONE, row
        books.state[row.got.id] = "done"


def nack(each: Round, ledger: Ledger, books: Books) -> None:
    lasts_ms = each.chance.choice((None, FAR_MS))
    for row in ledger.settle(each.wire, "nack", held(each, books), lasts_ms=lasts_ms):
        assert row.outcome == DONE, row
        if row.got.attempt >= 3:
            books.die(row.got.id)
        else:
            books.state[row.got.id] = "retry"


def nack_now(each: Round, ledger: Ledger, books: Books) -> None:
    for row in ledger.settle(each.wire, "nack", held(each, books), lasts_ms=0):
        assert row.outcome == DONE, row
        if row.got.attempt >= 3:
            books.die(row.got.id)
        else:
            books.state[row.got.id] = "ready"


def reject(each: Round, ledger: Ledger, books: Books) -> None:
    for row in ledger.settle(each.wire, "reject", held(each, books)[:2]):
        assert row.outcome == DONE, row
        books.die(row.got.id)


def release(each: Round, ledger: Ledger, books: Books) -> None:
    for row in ledger.settle(each.wire, "release", held(each, books)):
        assert row.outcome == DONE, row
        books.attempts[row.got.id] -= 1
        books.state[row.got.id] = "ready"


def cancel(each: Round, _ledger: Ledger, books: Books) -> None:
    ids = [mid for mid, state in books.state.items() if state in ("ready", "retry", "scheduled")]
    if ids:
        mid = each.chance.choice(ids)
        assert each.wire.ask("DELETE", f"/v1/messages/{mid}").is_done
        books.state[mid] = "cancelled"


def move(each: Round, _ledger: Ledger, books: Books) -> None:
    ids = [mid for mid, state in books.state.items() if state in ("ready", "retry", "scheduled")]
    if ids:
        lane = each.chance.choice(("high", "normal", "low"))
        path = f"/v1/messages/{each.chance.choice(ids)}"
        assert each.wire.ask("PATCH", path, {"priority": lane}).is_done


def reschedule(each: Round, _ledger: Ledger, books: Books) -> None:
    ids = [mid for mid, state in books.state.items() if state == "scheduled"]
    if ids:
        mid = each.chance.choice(ids)
        at = each.chance.choice(("+2h", "-5m"))
        assert each.wire.ask("PATCH", f"/v1/messages/{mid}", {"deliver_at": at}).is_done
        books.state[mid] = "scheduled" if at == "+2h" else "ready"


def reset(each: Round, ledger: Ledger, books: Books) -> None:
    """Reset one partition to an offset; scheduled messages are not skipped."""
    partition = each.chance.randrange(PARTITIONS)
    here = {int(mid.split(":")[2]): mid for mid in books.state if mid.startswith(f"t:{partition}:")}
    waiting = [at for at, mid in here.items() if books.state[mid] == "scheduled"]
    to = each.chance.randint(0, min(waiting, default=len(here)))
    body = {"to": to, "partition": partition}
    each.wire.must("POST", f"/v1/topics/t/groups/{ledger.group}/reset", body)
    for at, mid in here.items():
        if books.state[mid] not in ("scheduled", "cancelled"):
            books.state[mid] = "ready" if at >= to else "done"
            books.attempts[mid] = 0


def redrive(each: Round, ledger: Ledger, books: Books) -> None:
    """Put dead letters back: they are new messages."""
    expected = books.deaths
    eventually(lambda: ledger.counts(each.wire)["dead"] >= expected)
    body = {"group": ledger.group, "max_messages": each.chance.randint(1, 5)}
    redriven = each.wire.ask("POST", "/v1/topics/t/redrive", body).body["redriven"]
    new: list[str] = []

    def all_came() -> bool:
        new[:] = [
            message["id"]
            for partition in range(PARTITIONS)
            for message in read_log(each.wire, "t", partition)
            if message["id"] not in books.state
        ]
        return len(new) == redriven

    eventually(all_came, f"{redriven} were put back")
    books.state |= dict.fromkeys(new, "ready")


def add_messages_of_another_group(each: Round, ledger: Ledger, _books: Books) -> None:
    """Another group changes nothing."""
    other = Ledger(ledger.topic, "other")
    found = other.receive(each.wire, "d", most=7, wait_ms=0, visibility_ms=FAR_MS)
    verb = each.chance.choice(("ack", "nack", "release"))
    other.settle(each.wire, verb, found)


STEPS = (
    publish, receive, ack, nack, nack_now, reject, release, cancel, move, reschedule,
    reset, redrive, add_messages_of_another_group,
)  # fmt: skip
WEIGHTS = (14, 20, 12, 7, 7, 3, 5, 5, 5, 4, 2, 2, 3)
