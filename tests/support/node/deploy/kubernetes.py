"""As much of the shape of Kubernetes' objects as ``deploy/kubernetes`` uses, and nothing else.

A field that is misspelt, missing or of another type is refused. Adding a field here is a promise
to have looked it up.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Labels = dict[str, str]


class _Shape(msgspec.Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """What has only the fields that it names."""


class Meta(_Shape):
    name: str
    labels: Labels = {}


class Selector(_Shape):
    match_labels: Labels


class ServicePort(_Shape):
    name: str
    port: int
    target_port: str


class ServiceSpec(_Shape):
    selector: Labels
    ports: list[ServicePort]
    cluster_ip: Literal["None"] | None = msgspec.field(name="clusterIP", default=None)
    publish_not_ready_addresses: bool = False


class Service(_Shape):
    api_version: Literal["v1"]
    kind: Literal["Service"]
    metadata: Meta
    spec: ServiceSpec


class BudgetSpec(_Shape):
    max_unavailable: int
    selector: Selector


class Budget(_Shape):
    api_version: Literal["policy/v1"]
    kind: Literal["PodDisruptionBudget"]
    metadata: Meta
    spec: BudgetSpec


class FieldRef(_Shape):
    field_path: str


class ValueFrom(_Shape):
    field_ref: FieldRef


class Variable(_Shape):
    name: str
    value: str | None = None
    value_from: ValueFrom | None = None


class ContainerPort(_Shape):
    name: str
    container_port: int


class HttpGet(_Shape):
    path: str
    port: str


class Probe(_Shape):
    http_get: HttpGet
    period_seconds: int
    failure_threshold: int
    timeout_seconds: int = 1


class Exec(_Shape):
    command: list[str]


class Hook(_Shape):
    exec: Exec


class Lifecycle(_Shape):
    pre_stop: Hook


class Resources(_Shape):
    requests: dict[str, str]
    limits: dict[str, str] = {}


class Capabilities(_Shape):
    drop: list[str]


class ContainerSecurity(_Shape):
    allow_privilege_escalation: bool
    read_only_root_filesystem: bool
    capabilities: Capabilities


class Mount(_Shape):
    name: str
    mount_path: str
    read_only: bool = False


class Container(_Shape):
    name: str
    image: str
    args: list[str]
    env: list[Variable]
    ports: list[ContainerPort]
    startup_probe: Probe
    liveness_probe: Probe
    readiness_probe: Probe
    lifecycle: Lifecycle
    resources: Resources
    security_context: ContainerSecurity
    volume_mounts: list[Mount]


class Profile(_Shape):
    type: Literal["RuntimeDefault"]


class PodSecurity(_Shape):
    run_as_non_root: bool
    run_as_user: int
    run_as_group: int
    fs_group: int
    fs_group_change_policy: Literal["OnRootMismatch", "Always"]
    seccomp_profile: Profile


class Term(_Shape):
    topology_key: str
    label_selector: Selector


class WeightedTerm(_Shape):
    weight: int
    pod_affinity_term: Term


class AntiAffinity(_Shape):
    required: list[Term] = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: list[WeightedTerm] = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(_Shape):
    pod_anti_affinity: AntiAffinity


class SecretVolume(_Shape):
    secret_name: str
    default_mode: int


class Volume(_Shape):
    name: str
    secret: SecretVolume | None = None
    empty_dir: dict[str, Any] | None = None


class PodSpec(_Shape):
    termination_grace_period_seconds: int
    automount_service_account_token: bool
    enable_service_links: bool
    security_context: PodSecurity
    affinity: Affinity
    containers: list[Container]
    volumes: list[Volume]


class PodMeta(_Shape):
    labels: Labels


class Pod(_Shape):
    metadata: PodMeta
    spec: PodSpec


class ClaimSpec(_Shape):
    access_modes: list[str]
    resources: Resources


class Claim(_Shape):
    metadata: Meta
    spec: ClaimSpec


class StatefulSpec(_Shape):
    service_name: str
    replicas: int
    pod_management_policy: Literal["Parallel", "OrderedReady"]
    min_ready_seconds: int
    selector: Selector
    template: Pod
    volume_claim_templates: list[Claim]


class StatefulSet(_Shape):
    api_version: Literal["apps/v1"]
    kind: Literal["StatefulSet"]
    metadata: Meta
    spec: StatefulSpec
