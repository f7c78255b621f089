"""The manifests: that they are well-formed, agree with each other, and tell goq what it takes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from goq import limits
from tests.support.node.deploy.deployment import (
    DEPLOY,
    config_of,
    image_environment,
    instructions,
    kubernetes_nodes,
    manifests,
)
from tests.support.node.deploy.kubernetes import (
    Budget,
    Container,
    PodSpec,
    Service,
    StatefulSet,
    StatefulSpec,
)
from tests.support.node.deploy.routes import paths_of_a_node

FOLDER = DEPLOY / "kubernetes"


def service(name: str) -> Service:
    return msgspec.convert(manifests()["Service", name], Service)


def stateful() -> StatefulSet:
    return msgspec.convert(manifests()["StatefulSet", "goq"], StatefulSet)


def budget() -> Budget:
    return msgspec.convert(manifests()["PodDisruptionBudget", "goq"], Budget)


def pod() -> PodSpec:
    return stateful().spec.template.spec


def container() -> Container:
    (found,) = pod().containers
    return found


def test_the_folder_has_only_what_the_kustomization_lists_and_what_is_of_a_known_shape() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert sorted([*listed, "kustomization.yaml"]) == sorted(p.name for p in FOLDER.iterdir())
    known = {("Service", "goq"), ("Service", "goq-nodes")}
    known |= {("StatefulSet", "goq"), ("PodDisruptionBudget", "goq")}
    assert manifests().keys() == known
    for read in (stateful, budget, lambda: service("goq"), lambda: service("goq-nodes")):
        read()  # raises where a field is not of the shape


def test_every_selector_finds_the_pods() -> None:
    labels = stateful().spec.template.metadata.labels
    terms = pod().affinity.pod_anti_affinity
    selectors = [
        service("goq").spec.selector,
        service("goq-nodes").spec.selector,
        stateful().spec.selector.match_labels,
        budget().spec.selector.match_labels,
        *(term.label_selector.match_labels for term in terms.required),
        *(term.pod_affinity_term.label_selector.match_labels for term in terms.preferred),
    ]
    assert labels
    assert all(selector == labels for selector in selectors)


def test_the_services_lead_to_the_ports_that_goq_listens_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ports = {port.name: port.container_port for port in container().ports}
    (told, *_) = kubernetes_nodes(1)
    config = config_of(told.arguments, told.environment, monkeypatch)
    assert ports == {"http": config.broker.port, "cluster": config.cluster.address[1]}
    for name in ("goq", "goq-nodes"):
        for port in service(name).spec.ports:
            assert ports[port.target_port] == port.port


def test_the_pods_have_names_before_they_are_ready_by_the_service_that_the_set_names() -> None:
    spec = service(stateful().spec.service_name).spec
    assert (spec.cluster_ip, spec.publish_not_ready_addresses) == ("None", True)
    assert stateful().spec.pod_management_policy == "Parallel"


def test_goq_takes_what_each_pod_is_told_and_the_first_pods_are_the_peers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = kubernetes_nodes(stateful().spec.replicas)
    configs = [config_of(one.arguments, one.environment, monkeypatch) for one in told]
    assert [config.broker.node_id for config in configs] == ["goq-0", "goq-1", "goq-2"]
    for one, config in zip(told, configs, strict=True):
        name = config.broker.node_id
        assert config.cluster.peers.keys() == {other.broker.node_id for other in configs}
        assert config.cluster.peers[name] == f"{one.host}:{config.cluster.address[1]}"
        assert config.cluster.advertise == f"http://{one.host}:{config.broker.port}"
        assert config.cluster.join_url(name) is None
        assert config.cluster.min_insync < len(configs)


def test_goq_takes_what_a_pod_beyond_the_first_is_told_and_has_it_join_one_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    *first, later = kubernetes_nodes(stateful().spec.replicas + 1)
    config = config_of(later.arguments, later.environment, monkeypatch)
    name = config.broker.node_id
    assert config.cluster.join_url(name) == f"http://{first[0].host}:{config.broker.port}"
    assert config.cluster.address_of(name) == f"{later.host}:{config.cluster.address[1]}"


def test_one_node_at_a_time_may_be_taken_away() -> None:
    replicas = stateful().spec.replicas
    assert replicas % 2 == 1
    assert budget().spec.max_unavailable == 1
    assert replicas - 1 > replicas / 2


def test_no_two_pods_are_on_one_machine_and_zones_are_spread() -> None:
    terms = pod().affinity.pod_anti_affinity
    assert [term.topology_key for term in terms.required] == ["kubernetes.io/hostname"]
    preferred = [term.pod_affinity_term.topology_key for term in terms.preferred]
    assert preferred == ["topology.kubernetes.io/zone"]


def test_the_probes_ask_what_goq_answers_on_its_port() -> None:
    found = container()
    assert found.startup_probe.http_get.path == found.liveness_probe.http_get.path == "/livez"
    assert found.readiness_probe.http_get.path == "/readyz"
    ports = {port.name for port in found.ports}
    for probe in (found.startup_probe, found.liveness_probe, found.readiness_probe):
        assert probe.http_get.path in paths_of_a_node()
        assert probe.http_get.port in ports


def test_a_pod_has_the_time_that_its_hook_and_draining_take() -> None:
    word, seconds = container().lifecycle.pre_stop.exec.command
    assert word == "sleep"
    needed_s = int(seconds) + 3 * limits.DRAIN_TIMEOUT_MS / 1000
    assert pod().termination_grace_period_seconds > needed_s


def test_a_pod_is_waited_for_until_it_leads_again_what_it_led() -> None:
    assert stateful().spec.min_ready_seconds * 1000 > limits.PREFERRED_LEADER_DELAY_MS


def test_what_is_mounted_is_there_and_goq_writes_only_where_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mounts = {mount.name: mount for mount in container().volume_mounts}
    volumes = {volume.name: volume for volume in pod().volumes}
    claims = {claim.metadata.name for claim in stateful().spec.volume_claim_templates}
    assert mounts.keys() == volumes.keys() | claims
    (told, *_) = kubernetes_nodes(1)
    config = config_of(told.arguments, told.environment, monkeypatch)
    assert str(config.broker.data_dir) == mounts["data"].mount_path
    assert "data" in claims
    secret_file = config.cluster.secret_file
    assert secret_file is not None
    assert str(secret_file.parent) == mounts["secret"].mount_path
    assert mounts["secret"].read_only


def test_the_secret_is_made_by_the_command_that_is_documented() -> None:
    readme = (DEPLOY / "README.md").read_text()
    made = re.search(r"kubectl create secret generic (\S+) --from-file=(\S+?)=", readme)
    assert made
    (volume,) = [volume.secret for volume in pod().volumes if volume.secret is not None]
    assert volume.secret_name == made[1]
    (told, *_) = kubernetes_nodes(1)
    assert told.environment["GOQ_CLUSTER__SECRET_FILE"].endswith(f"/{made[2]}")
    assert volume.default_mode == 0o440  # the group of the pod, and nobody else


def test_a_pod_runs_as_the_user_of_the_image_and_may_do_nothing_else() -> None:
    (user,) = [i.rest for i in instructions() if i.keyword == "USER"]
    security = pod().security_context
    assert f"{security.run_as_user}:{security.run_as_group}" == user
    assert security.fs_group == security.run_as_group
    assert security.run_as_non_root
    own = container().security_context
    assert not own.allow_privilege_escalation
    assert own.read_only_root_filesystem
    assert own.capabilities.drop == ["ALL"]
    assert not pod().automount_service_account_token


def test_no_variable_of_a_service_is_mixed_up_with_a_setting() -> None:
    assert not pod().enable_service_links
    assert all(name.startswith("GOQ_") or name == "PATH" for name in image_environment())


kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")


def built(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)],
        capture_output=True,
        check=True,
        timeout=120,
    )
    return list(yaml.safe_load_all(done.stdout))


@kubectl
def test_kubectl_builds_from_the_folder_what_is_written_there() -> None:
    assert {(d["kind"], d["metadata"]["name"]): d for d in built(FOLDER)} == manifests()


@kubectl
def test_the_overlay_of_the_documentation_changes_what_it_says(tmp_path: Path) -> None:
    readme = (DEPLOY / "README.md").read_text()
    overlay = re.search(r"```yaml\n# kustomization.yaml\n(.+?)```", readme, re.DOTALL)
    assert overlay
    kustomization = yaml.safe_load(overlay[1])
    shutil.copytree(FOLDER, tmp_path / "base")
    kustomization["resources"] = ["../base"]
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay" / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    (found,) = [d for d in built(tmp_path / "overlay") if d["kind"] == "StatefulSet"]
    spec = msgspec.convert(found["spec"], StatefulSpec)
    assert spec.template.spec.containers[0].image == "my-registry/goq:0.1.0"
    assert spec.volume_claim_templates[0].spec.resources.requests == {"storage": "200Gi"}
