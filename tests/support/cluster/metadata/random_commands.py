"""Random commands on the cluster's metadata: sensible, stale, repeated and senseless ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from goq.access.token_record import TokenRecord
from goq.cluster.metadata import commands as c
from goq.cluster.metadata.state import (
    MetadataState,
    NodeMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from goq.model import draw_topic_id
from goq.schedules.schedule_record import ScheduleRecord, ScheduleRun

NODES = [f"n{number}" for number in range(1, 8)]
RACKS = [None, "a", "b", "c"]
TOPICS = ["orders", "mails", "clicks"]
GROUPS = ["g1", "g2"]


class Commands:
    """Commands from a seed; each is decided on a state that may be some commands old."""

    def __init__(self, seed: object, topics: Sequence[str] = TOPICS) -> None:
        self._topics = topics
        self.random = random.Random(str(seed))
        self._token_random = random.Random(f"tokens {seed}")
        self._schedule_random = random.Random(f"schedules {seed}")
        self._states: list[MetadataState] = []
        self._made: list[c.AnyCommand] = []

    def next(self, state: MetadataState) -> c.AnyCommand:
        """Return the next command."""
        self._states = [*self._states[-20:], state]
        if self._token_random.random() < 0.03:
            return self._about_token(state)
        if self._schedule_random.random() < 0.03:
            return self._about_schedule(state)
        chance = self.random.random()
        if self._made and chance < 0.08:
            return self.random.choice(self._made[-30:])
        seen = self.random.choice(self._states) if chance < 0.2 else state
        command = self._command(seen)
        self._made.append(command)
        return command

    def _command(self, state: MetadataState) -> c.AnyCommand:
        if len(state.nodes) < 2 or self.random.random() < 0.45:
            return self._about_node(state)
        if not state.topics or self.random.random() < 0.2:
            return self._about_topic(state)
        topic = self.random.choice(sorted(state.topics.values(), key=lambda t: t.name))
        return self._about_partition(state, topic)

    def _about_token(self, state: MetadataState) -> c.AnyCommand:
        r = self._token_random
        token_id = r.choice(["aaaaaaaa", "bbbbbbbb", "cccccccc"])
        known = state.tokens.get(token_id)
        version = (0 if known is None else known.version) + r.choice([0, 1, 1, 1])
        ended_ms = r.choice([0, 0, 1])
        created_ms = r.choice([1, 10**10])
        return c.PutToken(
            TokenRecord(
                token_id,
                "team",
                "0" * 64,
                ("publish:*",),
                created_ms,
                revoked_ms=ended_ms,
                version=version,
            )
        )

    def _about_schedule(self, state: MetadataState) -> c.AnyCommand:
        r = self._schedule_random
        name = r.choice(["tick", "tock", "clean"])
        known = state.schedules.get(name)
        if r.random() < 0.2:
            return c.DeleteSchedule(name)
        if r.random() < 0.4:
            return c.RecordScheduleRuns({name: ScheduleRun(r.randrange(9), r.choice(["", "why"]))})
        version = (0 if known is None else known.version) + r.choice([0, 1, 1, 1])
        times = (0, r.randrange(9), r.choice([0, 7]), r.randrange(9))
        record = ScheduleRecord(name, "orders", "[]", "", "", 1000, "-", *times, version=version)
        return c.PutSchedule(record)

    def _about_node(self, state: MetadataState) -> c.AnyCommand:
        r = self.random
        name = r.choice(NODES)
        node = state.nodes.get(name)
        incarnation = 0 if node is None else node.incarnation
        if node is None or r.random() < 0.15:
            rack = node.rack if node else r.choice(RACKS)
            fields: dict[str, Any] = {
                "incarnation": incarnation + r.choice([0, 1, 1, 1, 3]),
                "http_url": f"http://{name}",
                "cluster_address": f"{name}:9",
                "rack": rack,
                "durable_topics": tuple(
                    topic.topic_id for _, topic in sorted(state.topics.items()) if r.random() < 0.7
                ),
            }
            if r.random() < (0.9 if state.features.level else 0.1):
                level = state.features.level + r.choice([-1, 0, 0, 0, 1])
                return c.RegisterNodeWithLevel(name, **fields, feature_level=max(0, level))
            return c.RegisterNode(name, **fields)
        if r.random() < 0.03:
            return self._raise_level(state)
        if r.random() < 0.05:
            return self._reset(state, node)
        if not node.is_up and r.random() < 0.6:
            return c.UnfenceNode(name, incarnation)
        if node.unfit_reason and r.random() < 0.5:
            return c.SetNodeHealth(name, incarnation)
        kind = r.randrange(8)
        if r.random() < 0.03:
            return c.ReportDataLoss(name, r.choice(["", "", "another"]))
        if r.random() < 0.006:
            return c.ForceNewCluster(name, r.choice(["", "", "another"]))
        if kind < 4:
            return c.FenceNode(name, incarnation)
        if kind < 5:
            return c.SetNodeHealth(name, incarnation, r.choice(["", "the disk is full"]))
        if kind < 6:
            return c.UnfenceNode(name, incarnation)
        if kind < 7 and r.random() < 0.3:
            return c.DecommissionNode(name, r.random() < 0.3)
        return c.RemoveNode(name)

    def _raise_level(self, state: MetadataState) -> c.AnyCommand:
        r = self.random
        level = state.features.level + r.choice([0, 1, 1])
        nodes = {
            name: (node.incarnation, max(0, level - (r.random() < 0.05)))
            for name, node in sorted(state.nodes.items())
            if r.random() < 0.95
        }
        return c.RaiseFeatureLevel(level, nodes)

    def _reset(self, state: MetadataState, node: NodeMetadata) -> c.AnyCommand:
        r = self.random
        partitions = tuple(
            (topic.topic_id, number + (r.random() < 0.05))
            for _, topic in sorted(state.topics.items())
            for number in range(len(topic.partitions))
            if r.random() < 0.3
        )
        return c.ResetReplicas(node.id, node.incarnation + (r.random() < 0.1), partitions)

    def _about_topic(self, state: MetadataState) -> c.AnyCommand:
        r = self.random
        name = r.choice(self._topics)
        topic = state.topics.get(name)
        if topic is None:
            factor = r.choice([None, 1, 2, 3, 3, 9])
            fields: Any = (name, r.choice([0, 1, 3, 6, 12]), {"fsync": "always"}, factor)
            if r.random() < 0.5:
                used = [topic.topic_id for _, topic in sorted(state.topics.items())]
                topic_id = draw_topic_id(r.getrandbits)
                if r.random() < 0.1:
                    topic_id = r.choice([0, *used])
                replication = (*fields, r.choice([None, 1, 2]), topic_id)
                if r.random() < 0.5:
                    node = r.choice([*sorted(state.nodes), "n0"])
                    groups: Any = {group: {"x": "1"} for group in GROUPS if r.random() < 0.3}
                    return c.AdoptTopic(*replication, node, r.randrange(9), groups)
                return c.CreateTopicWithId(*replication)
            if r.random() < 0.3:
                return c.CreateTopicWithMinInsync(*fields, r.choice([0, 1, 2, 3]))
            return c.CreateTopic(*fields)
        key = (name, topic.topic_id)
        group = r.choice(GROUPS)
        known = state.groups.get(name, {}).get(group)
        choices: list[c.AnyCommand] = [
            c.AlterTopic(*key, topic.version, {r.choice("ab"): r.choice(["1", None])}),
            c.AddPartitions(*key, topic.version, len(topic.partitions) + r.randrange(3)),
            c.PutGroup(*key, group, known.version if known else 0, {"x": str(r.random())}),
            c.DeleteGroup(*key, group, known.version if known else 0),
            c.AlterClusterSettings(state.settings.version, moves_at_once=r.randrange(4)),
            c.CreateTopic(name, 1, {}),
            c.AlterTopicReplication(
                *key,
                topic.version,
                r.choice([None, 0, 1, 2, 3, 9]),
                r.choice([None, None, 1, 2, 4]),
            ),
        ]
        if topic.deleting or r.random() < 0.15:
            choices = [c.DeleteTopic(*key), c.DeleteTopicAtOnce(*key), c.RemoveTopic(*key)]
            deleted = [one for _, one in sorted(state.deleted_topics.items())]
            choices += [c.RemoveTopic(one.name, one.topic_id) for one in deleted]
        return r.choice(choices)

    def _about_partition(self, state: MetadataState, topic: TopicMetadata) -> c.AnyCommand:
        r = self.random
        number = r.randrange(len(topic.partitions))
        p = topic.partitions[number]
        if r.random() < 0.02:
            number += 1
        key = (topic.name, topic.topic_id, number)
        at = (*key, p.version)
        anybody = r.choice(NODES)
        node = state.nodes.get(anybody)
        replica = r.choice([*p.holders, anybody])
        own = state.nodes[replica].incarnation if replica in state.nodes else 0
        kind = r.randrange(12)
        if kind < 4:
            not_seen = tuple(node for node in p.restarted if r.random() < 0.5)
            leading = (p.leader or anybody, p.leader_epoch)
            in_sync = c.AlterInSync(*at, *leading, self._in_sync(state, p), not_seen)
            if r.random() < 0.7:
                return in_sync
            return c.ChangePartitions((in_sync, c.ElectLeader(*at, replica)))
        if kind < 5:
            if r.random() < 0.3:
                return c.RenewLeadership(*at, p.leader or anybody, p.leader_epoch)
            return c.ElectLeader(*at, replica)
        if kind < 6:
            return c.ElectLeader(*at, replica, unclean=True)
        if kind < 7:
            return c.MarkReplicaDamaged(*key, replica, own)
        if kind < 8:
            return c.MarkReplicaRepaired(*key, r.choice(p.damaged or (anybody,)), own)
        if p.target:
            cancel, finish = c.CancelReassignment(*at, r.random() < 0.5), c.FinishReassignment(*at)
            choices = [cancel, finish, finish, c.StartReassignment(*at)]
            return (
                c.StartReassignment(*at)
                if not p.is_reassigning and kind < 11
                else r.choice(choices)
            )
        target = list(p.replicas)
        if node is not None and r.random() < 0.8:
            target[r.randrange(len(target))] = anybody
        if r.random() < 0.3:
            r.shuffle(target)
        if r.random() < 0.2:
            target.append(r.choice(NODES))
        return c.ReassignPartition(*at, tuple(target), r.random() < 0.3)

    def _in_sync(self, state: MetadataState, p: PartitionMetadata) -> dict[str, int]:
        r = self.random
        chosen = {node for node in p.holders if r.random() < 0.8}
        if p.leader is not None and r.random() < 0.95:
            chosen.add(p.leader)
        if r.random() < 0.05:
            chosen.add(r.choice(NODES))
        return {
            node: state.nodes[node].incarnation + (r.random() < 0.03)
            for node in sorted(chosen)
            if node in state.nodes
        }
