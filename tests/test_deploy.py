"""The manifests are valid, and say what docs/guides/containers.md says."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import yaml
from blocks import ROOT

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warnings of the module's own imports
    import kubernetes_validate

MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))


def load(manifest: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "deploy" / "kubernetes" / manifest).read_text())


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_manifest_agrees_with_kubernetes_schema(manifest: Any) -> None:
    pod = load(manifest.name)
    for container in containers(pod):
        container.setdefault("image", "set-by-spark")
    kubernetes_validate.validate(pod, "1.29", strict=True)
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_containers_share_memory_of_a_stated_size_and_nothing_else(manifest: Any) -> None:
    pod = load(manifest.name)
    (volume,) = pod["spec"]["volumes"]
    assert volume["emptyDir"]["medium"] == "Memory"
    assert volume["emptyDir"]["sizeLimit"]
    for container in containers(pod):
        assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/dev/shm"}]
    assert "shareProcessNamespace" not in pod["spec"]
    assert pod["spec"]["securityContext"]["fsGroup"]


def test_model_server_is_a_native_sidecar_of_the_executors_user() -> None:
    pod = load("executor-pod-template.yaml")
    (server,) = pod["spec"]["initContainers"]
    assert server["restartPolicy"] == "Always"
    assert pod["spec"]["securityContext"]["runAsUser"] == 185
    assert not any("securityContext" in container for container in containers(pod))
