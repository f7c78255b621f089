"""What must hold throughout: looked at after every step of every node."""

from __future__ import annotations

from typing import Any

from pysyncobj import SyncObj

from tests.cluster.raft.fuzz.environment.world import World
from tests.cluster.raft.fuzz.libraries.library import inside
from tests.cluster.raft.fuzz.machine import Reached, request_of

Entry = tuple[bytes, int, int]  # command, index, term


class Watch:
    """What the group has promised, and every promise that was broken."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.broken: list[str] = []
        self.line: list[tuple[str, Reached]] = []  # each applied command, and how far it led
        self.answers: dict[int, str] = {}  # what the machine answered to each request
        self.proposed: set[str] = set()
        self.acknowledged: set[int] = set()
        self._attempts: dict[str, int] = {}
        self._leaders: dict[int, tuple[str, int]] = {}
        self._entries: dict[tuple[int, int], tuple[bytes, int]] = {}
        self._committed: dict[int, tuple[Entry, int]] = {}  # and the term of who noticed

    def fail(self, what: str) -> None:
        self.world.note(f"BROKEN {what}")
        self.broken.append(f"{what} (at {self.world.now:.3f} s)")

    def acknowledge(self, request: int, answer: Any) -> None:
        """Take note that a proposer was told of success."""
        self.acknowledged.add(request)
        if answer is None or self.answers.get(request) != answer:
            self.fail(f"false success: request {request} was answered {answer!r},"
                      f" the machine said {self.answers.get(request)!r}")  # fmt: skip

    def applied(self, who: str, command: str, before: Reached, answer: str) -> None:
        """Compare a command that a node applied with what others applied at its place."""
        reached = before.after(command)
        if command not in self.proposed:
            self.fail(f"{who} applied {command[:20]!r}, which nobody proposed")
        if before.count == len(self.line):
            self.line.append((command, reached))
        if self.line[before.count] != (command, reached):
            self.fail(f"{who} applied {command[:20]!r} at {before.count},"
                      f" another {self.line[before.count][0][:20]!r}")  # fmt: skip
        place = self._attempts.setdefault(command, before.count)
        if place != before.count and not self.world.counts["messages across connections"]:
            self.fail(f"{who} applied {command[:20]!r} at {place} and at {before.count}")
        if answer != "poison" and self.answers.setdefault(request_of(command), answer) != answer:
            self.fail(f"{who} answered {answer!r} to {command[:20]!r}")

    def restored(self, who: str, reached: Reached) -> None:
        """Compare a snapshot with what nodes applied one by one."""
        known = reached.count <= len(self.line)
        if reached.count and not (known and self.line[reached.count - 1][1] == reached):
            self.fail(f"{who} restored a state that nobody was in")

    def leads(self, who: str, life: int, term: int, log: list[Entry]) -> None:
        """Take note of a leader."""
        if term in self._leaders:
            if self._leaders[term] != (who, life):
                self.fail(f"term {term} has two leaders: {self._leaders[term]} and {who, life}")
            return
        self._leaders[term] = (who, life)
        self.world.counts["elections"] += 1
        self.world.note(f"{who} leads term {term}")
        first = log[0][1]
        due = [
            entry
            for entry, noticed in self._committed.values()
            if noticed < term and entry[1] >= first
        ]
        missing = [
            index for _, index, of in due if index > log[-1][1] or log[index - first][2] != of
        ]
        if missing:
            self.fail(f"{who} leads term {term} without committed entries {missing[:3]}")

    def matches(self, who: str, entry: Entry, term_before: int) -> None:
        """Compare an entry with that of the same index and term elsewhere."""
        command, index, term = entry
        known = self._entries.setdefault((index, term), (command, term_before))
        if known != (command, term_before):
            self.fail(f"{who} has another entry {index} of term {term}")

    def committed(self, who: str, entry: Entry, term: int) -> None:
        """Take note that a node in a term holds an entry for committed."""
        known, _ = self._committed.setdefault(entry[1], (entry, term))
        if known[2] != entry[2]:
            self.fail(f"{who} committed term {entry[2]} at {entry[1]}, another {known[2]}")

    def is_committed(self, index: int, term: int) -> bool:
        known = self._committed.get(index)
        return known is not None and known[0][2] == term


class Life:
    """What is known of one node over its lives."""

    def __init__(self, watch: Watch, who: str) -> None:
        self._watch = watch
        self._who = who
        self._confirmed: list[tuple[int, int]] = []  # index and term that it said it has
        self._life = 0
        self._begin()

    def _begin(self) -> None:
        self._seen: dict[int, Entry] = {}
        self._last = 0
        self._commit = 0
        self._term = 0
        self._fresh = True

    def ended(self) -> None:
        self._life += 1
        self._begin()

    def wiped(self) -> None:
        self._confirmed.clear()

    def confirms(self, index: int, log: list[Entry]) -> None:
        """Take note that the node tells another, or itself, that it has a log up to an index."""
        position = index - log[0][1]
        if 0 <= position < len(log):
            promise = (index, log[position][2])
            if not self._confirmed or self._confirmed[-1] != promise:
                self._confirmed.append(promise)

    def look(self, node: SyncObj) -> None:
        """Look at a node after a step."""
        log = inside(node, "raftLog")[:]
        self._look_at_log(log)
        commit = inside(node, "raftCommitIndex")
        first, last = log[0][1], log[-1][1]
        for index in range(max(self._commit + 1, first), min(commit, last) + 1):
            self._watch.committed(self._who, log[index - first], node.raftCurrentTerm)
        if commit > self._commit:
            self._commit = commit
            self.confirms(commit, log)
        if self._fresh:
            self._fresh = False
            self._look_at_promises(log)
        if node._isLeader():
            self._watch.leads(self._who, self._life, node.raftCurrentTerm, log)
        if node.raftCurrentTerm < self._term:
            self._watch.fail(f"{self._who} went back from term {self._term}")
        self._term = node.raftCurrentTerm

    def _look_at_log(self, log: list[Entry]) -> None:
        last = log[-1][1]
        cut_from = last + 1 if last < self._last else None
        for position in range(len(log) - 1, -1, -1):
            entry = log[position]
            known = self._seen.get(entry[1])
            if known == entry:
                break
            before = log[position - 1] if position else None
            if before is not None and before[1] != entry[1] - 1:
                self._watch.fail(f"{self._who} has {entry[1]} after {before[1]}")
            if before is not None:  # what the first one's command was no longer matters
                self._watch.matches(self._who, entry, before[2])
            if known is not None and entry[1] <= self._last and known[2] != entry[2]:
                cut_from = entry[1]
            self._seen[entry[1]] = entry
        if cut_from is not None:
            self._look_at_cut(cut_from)
        self._last = last

    def _look_at_cut(self, cut_from: int) -> None:
        self._watch.world.counts["truncations"] += 1
        self._watch.world.note(f"{self._who} cuts its log from {cut_from}")
        if cut_from <= self._commit:
            self._watch.fail(
                f"{self._who} cut its log from {cut_from}, committed to {self._commit}"
            )
        self._commit = min(self._commit, cut_from - 1)

    def _look_at_promises(self, log: list[Entry]) -> None:
        first, last = log[0][1], log[-1][1]
        for index, term in reversed(self._confirmed):
            if self._watch.is_committed(index, term):
                if index > last or (index >= first and log[index - first][2] != term):
                    self._watch.fail(f"{self._who} confirmed {index} and came back without it")
                return
