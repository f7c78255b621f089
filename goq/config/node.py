"""The configuration of a node, checked; ``config.example.yaml`` has every setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

from msgspec import field

from goq import limits
from goq.config.addresses import host_and_port, host_names
from goq.config.archive import ArchiveConfig
from goq.config.backup import BackupConfig
from goq.config.section import (
    ConfigSection,
    Parser,
    checked_text,
    name_of,
    optional,
    path,
    section,
    settings,
    switch,
    text,
    word,
)
from goq.config.sqs import SqsConfig
from goq.config.topic import TopicSettings
from goq.config.types import count
from goq.errors import InvalidInput, UsageError
from goq.model import check_name

DEFAULT_PARTITIONS = 6
SECTIONS = "archive, broker, cluster, defaults, logging, metrics, security, sqs and backup"
_ALL_ADDRESSES = ("0.0.0.0", "::")
_OWN_SECTIONS: Final = ("delivery", "dead_letters", "delay", "priority", "tenants", "dedup")


def _data_dir(value: Any, field: str) -> Path:
    if (folder := path(value, field)) == Path():
        raise ValueError("name a folder; it is created if it does not exist")
    return folder


class BrokerConfig(ConfigSection, frozen=True):
    """The settings of the node itself."""

    PARSERS: ClassVar[dict[str, Parser]] = {
        "node_id": name_of("node"),
        "data_dir": _data_dir,
        "listen": checked_text(host_and_port),
        "auto_create_topics": switch,
    }

    node_id: str = "node-1"
    data_dir: Path = Path("goq-data")
    listen: str = "127.0.0.1:8080"
    auto_create_topics: bool = True

    @property
    def host(self) -> str:
        """The host to listen on."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port to listen on, 0 for any free one."""
        return int(self.listen.rpartition(":")[2])


def _node_url(value: str) -> str:
    """Return a node's URL, checked. It has no path of its own: all paths are goq's."""
    problem = f"{value!r} is not the URL of a node, as in http://10.0.0.1:8080"
    try:
        url = urlsplit(value)
        is_whole = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:
        raise ValueError(problem) from None
    if not is_whole or url.path.strip("/") or url.query or url.fragment or url.username:
        raise ValueError(problem)
    return value.rstrip("/")


class ClusterTlsConfig(ConfigSection, frozen=True):
    """The certificates of the metadata log's transport: encryption, and the identity of each node.

    PEM files. The authority in ``ca_file`` signs the certificate and should sign nothing else. The
    certificate names the node's id as a DNS name, and is valid for servers and clients.
    """

    PARSERS: ClassVar[dict[str, Parser]] = {"cert_file": path, "key_file": path, "ca_file": path}

    cert_file: Path
    key_file: Path
    ca_file: Path


def _peers(value: Any, _field: str) -> dict[str, str]:
    """Accept ``n1=HOST:PORT,n2=HOST:PORT`` as well as a mapping."""
    if value == "none" or value is None:
        return {}
    pairs: list[tuple[str, Any]] = []
    if isinstance(value, str):
        for part in filter(None, value.split(",")):
            name, sign, address = part.partition("=")
            if not sign:
                raise InvalidInput(f"{part!r} is not ID=HOST:PORT, as in n1=10.0.0.1:9080")
            pairs.append((name, address))
    else:
        pairs.extend(settings(value, _field).items())
    for name, address in pairs:
        check_name(name, "node")
        host_and_port(text(address, _field))
    for what in ([name for name, _ in pairs], [address for _, address in pairs]):
        if twice := [each for each in what if what.count(each) > 1]:
            raise InvalidInput(f"{twice[0]!r} is given for two nodes")  # else a smaller cluster
    return dict(pairs)


class ClusterConfig(ConfigSection, frozen=True):
    """The settings of a member of a cluster; without ``listen`` the node is standalone.

    The first nodes of a cluster find each other by ``peers``: addresses by node id, this node's
    among them. A later node gets the URL of any running one by ``join``. A node with both joins
    only if it is not among the peers, so that one configuration serves all. Both count only until
    the node has heard from the cluster: after that the metadata has the members.

    A cluster whose nodes speak HTTP gets ``security.tls`` by three restarts of each node:
    ``tls_rollover`` of ``prepare``, which still speaks HTTP and can call HTTPS, then ``switch``,
    which speaks HTTPS and can call HTTP, then ``off``.
    """

    PARSERS: ClassVar[dict[str, Parser]] = {
        "listen": optional(checked_text(host_and_port)),
        "peers": _peers,
        "join": optional(checked_text(_node_url)),
        "secret_file": optional(path),
        "tls": optional(section(ClusterTlsConfig)),
        "advertise": optional(checked_text(_node_url)),
        "rack": optional(text),
        "tls_rollover": word("off", "prepare", "switch"),
        "min_insync": count(1, limits.CLUSTER_NODES_MAX).parse,
    }

    listen: str | None = None
    peers: dict[str, str] = field(default_factory=dict)
    join: str | None = None
    secret_file: Path | None = None
    tls: ClusterTlsConfig | None = None
    advertise: str | None = None
    rack: str | None = None
    tls_rollover: Literal["off", "prepare", "switch"] = "off"
    min_insync: int = 2

    def join_url(self, node_id: str) -> str | None:
        """Return the URL of the node to ask for membership, None for a node among the peers."""
        return None if node_id in self.peers else self.join

    @property
    def is_member(self) -> bool:
        """Whether the node is a member of a cluster."""
        return self.listen is not None

    @property
    def address(self) -> tuple[str, int]:
        """The host and port to listen on for other nodes."""
        assert self.listen is not None
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    def address_of(self, node_id: str) -> str | None:
        """Return ``HOST:PORT`` at which other nodes reach this one, None if no setting says it."""
        if node_id in self.peers:
            return self.peers[node_id]
        host, port = self.address
        if host not in _ALL_ADDRESSES:
            return self.listen
        if self.advertise is None:
            return None
        known = urlsplit(self.advertise).hostname
        return f"[{known}]:{port}" if ":" in str(known) else f"{known}:{port}"


class DefaultsConfig(ConfigSection, frozen=True):
    """The settings of new topics, where their creator gives none.

    All sections hold topic settings, nested or dotted; ``topic`` also holds the number of
    partitions.
    """

    PARSERS: ClassVar[dict[str, Parser]] = dict.fromkeys(("topic", *_OWN_SECTIONS), settings)

    topic: dict[str, Any] = field(default_factory=dict)
    delivery: dict[str, Any] = field(default_factory=dict)
    dead_letters: dict[str, Any] = field(default_factory=dict)
    delay: dict[str, Any] = field(default_factory=dict)
    priority: dict[str, Any] = field(default_factory=dict)
    tenants: dict[str, Any] = field(default_factory=dict)
    dedup: dict[str, Any] = field(default_factory=dict)

    def check(self, name: str) -> None:
        """Raise ``UsageError`` if a setting is none, or out of bounds."""
        try:
            _ = self.settings
        except InvalidInput as error:
            where = (error.field or "").removeprefix("settings.")
            own = "" if where.partition(".")[0] in _OWN_SECTIONS else "topic."
            raise UsageError(f"{name}.{own}{where}: {error.detail}") from None
        except (OverflowError, ValueError) as error:
            raise UsageError(f"{name}: a number is out of bounds: {error}") from None
        count = self.partitions
        if type(count) is not int or not 1 <= count <= limits.PARTITIONS_PER_TOPIC_MAX:
            raise UsageError(
                f"{name}.topic.partitions: {count!r} is not a number from 1 to"
                f" {limits.PARTITIONS_PER_TOPIC_MAX}"
            )

    @property
    def partitions(self) -> int:
        """The number of partitions of a new topic."""
        count = self.topic.get("partitions", DEFAULT_PARTITIONS)
        is_written = isinstance(count, str) and count.isascii() and count.isdigit()
        return int(count) if is_written and len(count) < 10 else count

    @property
    def settings(self) -> TopicSettings:
        """The topic settings, checked."""
        topic = {key: value for key, value in self.topic.items() if key != "partitions"}
        sections = {name: getattr(self, name) for name in _OWN_SECTIONS}
        return TopicSettings().changed({**topic, **sections})


class ServerTlsConfig(ConfigSection, frozen=True):
    """The certificate of the HTTP server, with the chain up to its authority, and the key: PEM.

    In a cluster the nodes verify each other by ``ca_file``, by default ``cluster.tls.ca_file``,
    else by the public authorities. Clients may show certificates of ``client_ca_file`` instead of a
    token.
    """

    PARSERS: ClassVar[dict[str, Parser]] = {
        "cert_file": path,
        "key_file": path,
        "ca_file": optional(path),
        "client_ca_file": optional(path),
    }

    cert_file: Path
    key_file: Path
    ca_file: Path | None = None
    client_ca_file: Path | None = None


class SecurityConfig(ConfigSection, frozen=True):
    """The settings of who may ask the node.

    With ``auth`` of ``tokens`` each request needs a token. Without, a node that other machines
    reach starts only with ``allow_open``. ``hosts`` are names by which clients call the node,
    besides its own: ``goq.example.com``, or ``*.example.com`` for every name under it. With
    ``tls`` the node speaks HTTPS and no HTTP.
    """

    PARSERS: ClassVar[dict[str, Parser]] = {
        "auth": word("off", "tokens"),
        "allow_open": switch,
        "tls": optional(section(ServerTlsConfig)),
        "hosts": host_names,
    }

    auth: Literal["off", "tokens"] = "off"
    allow_open: bool = False
    tls: ServerTlsConfig | None = None
    hosts: tuple[str, ...] = ()


class LoggingConfig(ConfigSection, frozen=True):
    """The settings of the log on stderr."""

    PARSERS: ClassVar[dict[str, Parser]] = {
        "level": word("debug", "info", "warning", "error"),
        "format": word("text", "json"),
    }

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class MetricsConfig(ConfigSection, frozen=True):
    """The settings of ``/metrics``.

    Without ``partitions`` there are no series of single partitions and their replicas, of which a
    large node has tens of thousands.
    """

    PARSERS: ClassVar[dict[str, Parser]] = {"partitions": switch}

    partitions: bool = True


class Config(ConfigSection, frozen=True):
    """The whole configuration of a node."""

    PARSERS: ClassVar[dict[str, Parser]] = {
        "broker": section(BrokerConfig),
        "defaults": section(DefaultsConfig),
        "cluster": section(ClusterConfig),
        "security": section(SecurityConfig),
        "logging": section(LoggingConfig),
        "metrics": section(MetricsConfig),
        "sqs": section(SqsConfig),
        "backup": section(BackupConfig),
        "archive": section(ArchiveConfig),
    }

    broker: BrokerConfig = BrokerConfig()
    defaults: DefaultsConfig = DefaultsConfig()
    cluster: ClusterConfig = ClusterConfig()
    security: SecurityConfig = SecurityConfig()
    logging: LoggingConfig = LoggingConfig()
    metrics: MetricsConfig = MetricsConfig()
    sqs: SqsConfig = SqsConfig()
    backup: BackupConfig = BackupConfig()
    archive: ArchiveConfig = ArchiveConfig()

    @property
    def speaks_https(self) -> bool:
        """Whether the node speaks HTTPS, and no HTTP."""
        is_prepared = self.cluster.is_member and self.cluster.tls_rollover == "prepare"
        return self.security.tls is not None and not is_prepared

    @property
    def ca_file(self) -> Path | None:
        """The authorities by which nodes of a cluster verify each other, None for the public."""
        if self.security.tls is not None and self.security.tls.ca_file is not None:
            return self.security.tls.ca_file
        return None if self.cluster.tls is None else self.cluster.tls.ca_file

    @property
    def asks_for_tokens(self) -> bool:
        """Whether each request needs a token."""
        return self.security.auth == "tokens"

    @property
    def host_names(self) -> set[str]:
        """The names of hosts by which clients and other nodes may call this node."""
        cluster, me = self.cluster, self.broker.node_id
        urls = [f"//{self.broker.listen}", cluster.advertise]
        if cluster.is_member:
            urls += [f"//{cluster.address_of(me)}"]
        named = {urlsplit(url).hostname for url in urls if url is not None}
        return {name for name in named if name} | set(self.security.hosts)

    @property
    def sqs_host_names(self) -> set[str]:
        """The names of hosts by which clients may call the SQS-compatible endpoint."""
        own = urlsplit(f"//{self.sqs.listen}").hostname
        return {own or "", *self.sqs.hosts, *self.host_names}

    def check(self, name: str) -> None:
        """Raise ``UsageError`` if the settings of a cluster do not go together."""
        cluster, me = self.cluster, self.broker.node_id
        if not cluster.is_member:
            if cluster.peers or cluster.join:
                raise UsageError(
                    "cluster.listen: set the address for other nodes, as in 10.0.0.1:9090"
                )
            return
        if cluster.tls_rollover != "off" and self.security.tls is None:
            raise UsageError("cluster.tls_rollover: set security.tls with it")
        scheme = "https" if self.speaks_https else "http"
        if cluster.advertise is not None and urlsplit(cluster.advertise).scheme != scheme:
            raise UsageError(
                f"cluster.advertise: this node speaks {scheme.upper()}; write {scheme}://HOST:PORT"
            )
        if cluster.secret_file is None:
            raise UsageError(
                "cluster.secret_file: nodes authenticate each other by a shared secret; make one"
                " for all with: (umask 077; openssl rand -hex 32 > cluster.secret)"
            )
        if cluster.peers and me not in cluster.peers and not cluster.join:
            names = ", ".join(sorted(cluster.peers))
            raise UsageError(
                f"cluster.peers: this node, {me}, is not among {names}; if it joins"
                " later, set cluster.join to the URL of a running node"
            )
        if cluster.address_of(me) is None:
            raise UsageError(
                f"cluster.advertise: other nodes cannot reach this node at {cluster.listen}; set"
                " the URL at which they can: http://HOST:PORT"
            )
