"""The configuration of a node, checked; ``config.example.yaml`` has every setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from goq import limits
from goq.config.addresses import host_and_port, host_names, listed
from goq.config.archive import ArchiveConfig
from goq.config.backup import BackupConfig
from goq.config.sqs import SqsConfig
from goq.config.topic import TopicSettings
from goq.errors import InvalidInput
from goq.model import check_name

DEFAULT_PARTITIONS = 6
SECTIONS = "archive, broker, cluster, defaults, logging, metrics, security, sqs and backup"
_STRICT = ConfigDict(extra="forbid", frozen=True)
_ALL_ADDRESSES = ("0.0.0.0", "::")


class BrokerConfig(BaseModel):
    """The settings of the node itself."""

    model_config = _STRICT

    node_id: str = "node-1"
    data_dir: Path = Path("goq-data")
    listen: str = "127.0.0.1:8080"
    auto_create_topics: bool = True

    @field_validator("node_id")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        try:
            return check_name(value, "node")
        except InvalidInput as error:
            raise ValueError(error.detail) from None

    @field_validator("data_dir")
    @classmethod
    def _is_given(cls, value: Path) -> Path:
        if value == Path():
            raise ValueError("name a folder; it is created if it does not exist")
        return value

    @field_validator("listen")
    @classmethod
    def _has_host_and_port(cls, value: str) -> str:
        return host_and_port(value)

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


class ClusterTlsConfig(BaseModel):
    """The certificates of the metadata log's transport: encryption, and the identity of each node.

    PEM files. The authority in ``ca_file`` signs the certificate and should sign nothing else. The
    certificate names the node's id as a DNS name, and is valid for servers and clients.
    """

    model_config = _STRICT

    cert_file: Path
    key_file: Path
    ca_file: Path


class ClusterConfig(BaseModel):
    """The settings of a member of a cluster; without ``listen`` the node is standalone.

    The first nodes of a cluster find each other by ``peers``: addresses by node id, this node's
    among them. A later node gets the URL of any running one by ``join``. A node with both joins
    only if it is not among the peers, so that one configuration serves all. Both count only until
    the node has heard from the cluster: after that the metadata has the members.

    A cluster whose nodes speak HTTP gets ``security.tls`` by three restarts of each node:
    ``tls_rollover`` of ``prepare``, which still speaks HTTP and can call HTTPS, then ``switch``,
    which speaks HTTPS and can call HTTP, then ``off``.
    """

    model_config = _STRICT

    listen: str | None = None
    peers: dict[str, str] = Field(default_factory=dict)
    join: str | None = None
    secret_file: Path | None = None
    tls: ClusterTlsConfig | None = None
    advertise: str | None = None
    rack: str | None = None
    tls_rollover: Literal["off", "prepare", "switch"] = "off"
    min_insync: int = Field(default=2, ge=1, le=limits.CLUSTER_NODES_MAX)

    @field_validator("listen")
    @classmethod
    def _has_host_and_port(cls, value: str | None) -> str | None:
        return None if value is None else host_and_port(value)

    @field_validator("listen", "join", "secret_file", "tls", "advertise", "rack", mode="before")
    @classmethod
    def _may_be_none(cls, value: Any) -> Any:
        return None if value == "none" else value

    @field_validator("tls_rollover", mode="before")
    @classmethod
    def _is_off(cls, value: Any) -> Any:
        """Accept what YAML makes of ``off``."""
        return "off" if value is False else value

    @field_validator("join", "advertise")
    @classmethod
    def _is_a_url(cls, value: str | None) -> str | None:
        return None if value is None else _node_url(value)

    @field_validator("peers", mode="before")
    @classmethod
    def _are_by_id(cls, value: Any) -> Any:
        """Accept ``n1=HOST:PORT,n2=HOST:PORT`` as well as a mapping."""
        if value == "none" or value is None:
            return {}
        if not isinstance(value, str):
            return value
        pairs = [part.partition("=") for part in value.split(",") if part]
        return {name: address for name, _, address in pairs}

    @field_validator("peers")
    @classmethod
    def _are_addresses(cls, value: dict[str, str]) -> dict[str, str]:
        for name, address in value.items():
            try:
                check_name(name, "node")
            except InvalidInput as error:
                raise ValueError(error.detail) from None
            host_and_port(address)
        return value

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


class DefaultsConfig(BaseModel):
    """The settings of new topics, where their creator gives none.

    All sections hold topic settings, nested or dotted; ``topic`` also holds the number of
    partitions.
    """

    model_config = _STRICT

    topic: dict[str, Any] = Field(default_factory=dict)
    delivery: dict[str, Any] = Field(default_factory=dict)
    dead_letters: dict[str, Any] = Field(default_factory=dict)
    delay: dict[str, Any] = Field(default_factory=dict)
    priority: dict[str, Any] = Field(default_factory=dict)
    tenants: dict[str, Any] = Field(default_factory=dict)
    dedup: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _are_settings(self) -> DefaultsConfig:
        try:
            _ = self.settings
        except InvalidInput as error:
            where = (error.field or "").removeprefix("settings.")
            section = "" if where.partition(".")[0] in _OWN_SECTIONS else "topic."
            raise ValueError(f"{section}{where}: {error.detail}") from None
        except (OverflowError, ValueError) as error:
            raise ValueError(f"a number is out of bounds: {error}") from None
        count = self.partitions
        if type(count) is not int or not 1 <= count <= limits.PARTITIONS_PER_TOPIC_MAX:
            raise ValueError(
                f"topic.partitions: {count!r} is not a number from 1 to"
                f" {limits.PARTITIONS_PER_TOPIC_MAX}"
            )
        return self

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


_OWN_SECTIONS = tuple(name for name in DefaultsConfig.model_fields if name != "topic")


class ServerTlsConfig(BaseModel):
    """The certificate of the HTTP server, with the chain up to its authority, and the key: PEM.

    In a cluster the nodes verify each other by ``ca_file``, by default ``cluster.tls.ca_file``,
    else by the public authorities. Clients may show certificates of ``client_ca_file`` instead of a
    token.
    """

    model_config = _STRICT

    cert_file: Path
    key_file: Path
    ca_file: Path | None = None
    client_ca_file: Path | None = None

    @field_validator("ca_file", "client_ca_file", mode="before")
    @classmethod
    def _may_be_none(cls, value: Any) -> Any:
        return None if value == "none" else value


class SecurityConfig(BaseModel):
    """The settings of who may ask the node.

    With ``auth`` of ``tokens`` each request needs a token. Without, a node that other machines
    reach starts only with ``allow_open``. ``hosts`` are names by which clients call the node,
    besides its own: ``goq.example.com``, or ``*.example.com`` for every name under it. With
    ``tls`` the node speaks HTTPS and no HTTP.
    """

    model_config = _STRICT

    auth: Literal["off", "tokens"] = "off"
    allow_open: bool = False
    tls: ServerTlsConfig | None = None
    hosts: tuple[str, ...] = ()

    @field_validator("auth", mode="before")
    @classmethod
    def _is_off(cls, value: Any) -> Any:
        """Accept what YAML makes of ``off``."""
        return "off" if value is False else value

    @field_validator("tls", mode="before")
    @classmethod
    def _may_be_none(cls, value: Any) -> Any:
        return None if value == "none" else value

    @field_validator("hosts", mode="before")
    @classmethod
    def _are_listed(cls, value: Any) -> Any:
        return listed(value)

    @field_validator("hosts")
    @classmethod
    def _are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return host_names(value)


class LoggingConfig(BaseModel):
    """The settings of the log on stderr."""

    model_config = _STRICT

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class MetricsConfig(BaseModel):
    """The settings of ``/metrics``.

    Without ``partitions`` there are no series of single partitions and their replicas, of which a
    large node has tens of thousands.
    """

    model_config = _STRICT

    partitions: bool = True


class Config(BaseModel):
    """The whole configuration of a node."""

    model_config = _STRICT

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

    @model_validator(mode="after")
    def _is_one_cluster(self) -> Config:
        cluster, me = self.cluster, self.broker.node_id
        if not cluster.is_member:
            if cluster.peers or cluster.join:
                raise ValueError(
                    "cluster.listen: set the address for other nodes, as in 10.0.0.1:9090"
                )
            return self
        if cluster.tls_rollover != "off" and self.security.tls is None:
            raise ValueError("cluster.tls_rollover: set security.tls with it")
        scheme = "https" if self.speaks_https else "http"
        if cluster.advertise is not None and urlsplit(cluster.advertise).scheme != scheme:
            raise ValueError(
                f"cluster.advertise: this node speaks {scheme.upper()}; write {scheme}://HOST:PORT"
            )
        if cluster.secret_file is None:
            raise ValueError(
                "cluster.secret_file: nodes authenticate each other by a shared secret; make one"
                " for all with: (umask 077; openssl rand -hex 32 > cluster.secret)"
            )
        if cluster.peers and me not in cluster.peers and not cluster.join:
            names = ", ".join(sorted(cluster.peers))
            raise ValueError(
                f"cluster.peers: this node, {me}, is not among {names}; if it joins"
                " later, set cluster.join to the URL of a running node"
            )
        if cluster.address_of(me) is None:
            raise ValueError(
                f"cluster.advertise: other nodes cannot reach this node at {cluster.listen}; set"
                " the URL at which they can: http://HOST:PORT"
            )
        return self
