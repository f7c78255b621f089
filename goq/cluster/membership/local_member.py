"""This node as a member of its cluster: the part that works before the node has a broker.

It listens for the Raft group, knows the cluster metadata, and calls other nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from goq.cluster.membership.disk_identity import DiskId, load_disk_id
from goq.cluster.membership.join import (
    fetch_members,
    join_cluster,
    known_addresses,
    registered_disk,
    registered_disk_in,
)
from goq.cluster.metadata.client import MetadataClient
from goq.cluster.metadata.state import MetadataState
from goq.cluster.metadata.state_machine import MetadataStateMachine
from goq.cluster.raft.driver import RaftSettings
from goq.cluster.raft.log.journal import FILE_NAME as JOURNAL
from goq.cluster.raft.node import RaftNode
from goq.cluster.raft.transport.link import Credentials
from goq.cluster.raft.transport.tls import tls_credentials
from goq.cluster.rpc.client import NodeClient, NodeConnections, RpcClient
from goq.cluster.rpc.stream_calls import StreamCalls
from goq.config.node import Config
from goq.errors import GoqError, UsageError
from goq.storage.disk import Disk

FOLDER = "cluster"
"""In the data folder: the Raft log and the cluster metadata."""


class LocalMember(NamedTuple):
    """The parts of an opened member; ``raft`` is started. Use :func:`open_member`."""

    config: Config
    secret: bytes
    disk_id: DiskId
    machine: MetadataStateMachine
    raft: RaftNode
    metadata: MetadataClient
    rpc: RpcClient
    streams: StreamCalls
    nodes: NodeClient

    @property
    def address(self) -> str:
        """Where the member listens for the Raft group."""
        return _address_of(self.config)

    def state(self) -> MetadataState:
        """Return the cluster metadata, as far as it is known here."""
        return self.machine.state

    def join(self) -> Callable[[], Coroutine[None, None, None]] | None:
        """Return what asks for admission and waits for it, None for a node that never asks."""
        url = self.config.cluster.join
        if url is None:
            return None
        return partial(
            join_cluster,
            self.rpc,
            url,
            _spec_of(self.config, self.disk_id.id),
            self.raft,
            self.state,
            is_initial=_join_url_of(self.config) is None,
        )


async def open_member(
    config: Config,
    disk: Disk,
    connections: NodeConnections,
    create_raft: Callable[[RaftSettings, MetadataStateMachine], RaftNode],
    streamed_calls: frozenset[str],
    give_up_reserve: Callable[[], bool],
    closing: AsyncExitStack,
) -> LocalMember:
    """Start the member of a configuration; ``closing`` stops what was started, failure or not.

    ``give_up_reserve`` is called when the disk of the metadata is full, and calls to other nodes
    go over streams if they are among ``streamed_calls``.
    Raises ``UsageError`` for an invalid configuration, ``CorruptData`` and ``OSError``.
    """
    name, data_dir, cluster = config.broker.node_id, config.broker.data_dir, config.cluster
    secret, folder = _read_secret(cluster.secret_file), data_dir / FOLDER
    disk_id = load_disk_id(disk, data_dir, folder, data_dir / "topics")
    machine = MetadataStateMachine(folder, give_up_reserve)
    closing.callback(machine.close)
    rpc = RpcClient(name, secret, connections, disk_id.id)
    closing.push_async_callback(rpc.close)
    settings = RaftSettings(
        _spec_of(config, disk_id.id if _join_url_of(config) is not None else None),
        cluster.address,
        folder,
        _credentials(config, secret),
        others=await _initial_members(config, disk, rpc, folder),
        disk=disk_id.id,
        registered_disk_of=lambda node: registered_disk(machine.state, node),
        registered_disk_in=registered_disk_in,
        addresses_of=lambda node: known_addresses(machine.state, cluster.peers, node),
    )
    raft = create_raft(settings, machine)
    closing.push_async_callback(raft.stop)
    try:
        await raft.start()
    except OSError as error:
        raise UsageError(
            f"cannot listen on {cluster.listen}: {error.strerror or error}", field="cluster.listen"
        ) from None
    streams = StreamCalls(lambda: machine.state)
    nodes = NodeClient(lambda: machine.state, rpc, streams, streamed_calls)
    metadata = MetadataClient(raft, machine)
    return LocalMember(config, secret, disk_id, machine, raft, metadata, rpc, streams, nodes)


async def _initial_members(
    config: Config, disk: Disk, rpc: RpcClient, folder: Path
) -> tuple[str, ...]:
    """Return the other members to start with; they count in a new folder only."""
    own, url = config.broker.node_id, _join_url_of(config)
    if url is None or JOURNAL in disk.names(folder):
        return tuple(f"{n}={a}" for n, a in config.cluster.peers.items() if n != own)
    try:
        known = await fetch_members(rpc, url)
    except GoqError as error:
        raise UsageError(f"cannot join {url}: {error}", field="cluster.join") from None
    return tuple(spec for name, spec in known.by_name().items() if name != own)


def _spec_of(config: Config, disk: str | None) -> str:
    """Return this node as a Raft member; one that joins names its disk, and it alone is it."""
    member = f"{config.broker.node_id}={_address_of(config)}"
    return member + (f"/{disk}" if disk is not None else "")


def _address_of(config: Config) -> str:
    address = config.cluster.address_of(config.broker.node_id)
    assert address is not None  # the configuration has been checked
    return address


def _join_url_of(config: Config) -> str | None:
    """Return the URL of a member to ask for admission, None for an initial node."""
    return config.cluster.join_url(config.broker.node_id)


def _credentials(config: Config, secret: bytes) -> Credentials:
    tls = config.cluster.tls
    if tls is None:
        return Credentials(secret)
    return tls_credentials(secret, tls.ca_file, tls.cert_file, tls.key_file)


def _read_secret(path: Path | None) -> bytes:
    assert path is not None
    try:
        return path.read_bytes().strip()
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", field="cluster.secret_file"
        ) from None
