"""A node's configuration: a file, then the environment, then flags; later values win.

``config.example.yaml`` has every setting with its default. In the environment a setting is
``GOQ_SECTION__NAME``, as ``GOQ_BROKER__DATA_DIR``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from goq import limits
from goq.config.topic import TopicSettings
from goq.errors import InvalidInput, UsageError
from goq.model import check_name

DEFAULT_PARTITIONS = 6
_STRICT = ConfigDict(extra="forbid", frozen=True)
_SECTIONS = "broker, cluster and defaults"
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
        return _host_and_port(value)

    @property
    def host(self) -> str:
        """The host to listen on."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port to listen on, 0 for any free one."""
        return int(self.listen.rpartition(":")[2])


def _host_and_port(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"{value!r} is not HOST:PORT, as in 127.0.0.1:8080")
    return value


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
    """

    model_config = _STRICT

    listen: str | None = None
    peers: Annotated[dict[str, str], NoDecode] = Field(default_factory=dict)
    join: str | None = None
    secret_file: Path | None = None
    tls: ClusterTlsConfig | None = None
    advertise: str | None = None
    rack: str | None = None
    min_insync: int = Field(default=2, ge=1, le=limits.CLUSTER_NODES_MAX)

    @field_validator("listen")
    @classmethod
    def _has_host_and_port(cls, value: str | None) -> str | None:
        return None if value is None else _host_and_port(value)

    @field_validator("listen", "join", "secret_file", "tls", "advertise", "rack", mode="before")
    @classmethod
    def _may_be_none(cls, value: Any) -> Any:
        return None if value == "none" else value

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
            _host_and_port(address)
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


class Config(BaseModel):
    """The whole configuration of a node."""

    model_config = _STRICT

    broker: BrokerConfig = BrokerConfig()
    defaults: DefaultsConfig = DefaultsConfig()
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="after")
    def _is_one_cluster(self) -> Config:
        cluster, me = self.cluster, self.broker.node_id
        if not cluster.is_member:
            if cluster.peers or cluster.join:
                raise ValueError(
                    "cluster.listen: set the address for other nodes, as in 10.0.0.1:9090"
                )
            return self
        if cluster.secret_file is None:
            raise ValueError(
                "cluster.secret_file: nodes authenticate each other by a shared secret; make one"
                " for all with: openssl rand -hex 32 > cluster.secret"
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


class _Environment(BaseSettings):
    """The environment variables that exist; :func:`load_config` reads and checks them."""

    model_config = SettingsConfigDict(env_prefix="GOQ_", env_nested_delimiter="__")

    broker: BrokerConfig = BrokerConfig()
    defaults: DefaultsConfig = DefaultsConfig()
    cluster: ClusterConfig = ClusterConfig()


def load_config(path: Path | None, flags: Mapping[str, Any]) -> Config:
    """Return the configuration from a file, the environment and ``flags`` (dotted names).

    Raises ``UsageError`` with the setting and what is wrong with it.
    """
    written = _read_file(path) if path is not None else {}
    written = _merge(written, _read_environment())
    for key, value in flags.items():
        written = _merge(written, _nested(key, value))
    try:
        return Config(**written)
    except ValidationError as error:
        found = "; ".join(_explain(e) for e in error.errors())
        where = f"{path}, the environment or a flag" if path else "the environment or a flag"
        raise UsageError(f"{found} (in {where})") from None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{path} is not YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UsageError(f"{path} should hold the sections {_SECTIONS}")
    return {key: {} if section is None else section for key, section in content.items()}


def _read_environment() -> dict[str, Any]:
    for name in sorted(os.environ):
        section, nested, _ = name.upper().removeprefix("GOQ_").partition("__")
        if (
            name.upper().startswith("GOQ_")
            and nested
            and section.lower() not in Config.model_fields
        ):
            raise UsageError(f"{name} is not a setting; the sections are {_SECTIONS}")
    try:
        return EnvSettingsSource(_Environment)()
    except SettingsError as error:
        detail = f": {error.__cause__}" if error.__cause__ else ""
        raise UsageError(f"{error}{detail}") from None


def _nested(key: str, value: Any) -> dict[str, Any]:
    """Return a setting by its dotted name in the form of the file."""
    section, _, rest = key.partition(".")
    if section not in Config.model_fields or not rest:
        raise UsageError(
            f"{key!r} is not a setting; settings begin with broker., cluster. or defaults."
        )
    for name in reversed(key.split(".")):
        value = {name: value}
    return dict(value)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``below`` with the values of ``above`` in their place or added at the end."""
    merged = dict(below)
    for key, value in above.items():
        known = merged.pop(key, None)  # a later value also comes later in order
        merged[key] = (
            _merge(known, value)
            if isinstance(known, Mapping) and isinstance(value, Mapping)
            else value
        )
    return merged


def _explain(error: Mapping[str, Any]) -> str:
    where = [str(step) for step in error["loc"]]
    message = error["msg"].removeprefix("Value error, ")
    if where == ["defaults"] and message.partition(".")[0] in DefaultsConfig.model_fields:
        return f"defaults.{message}"
    if error["type"] == "extra_forbidden":
        return f"{'.'.join(where)}: there is no such setting"
    return f"{'.'.join(where)}: {message}" if where else message
