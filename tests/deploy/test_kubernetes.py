"""The manifests for Kubernetes hold to the schemas of its API, and name nothing that is not there; none was ever applied."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import models

from tests.system.server import REPOSITORY

FOLDER = REPOSITORY / "deploy" / "kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
Manifest = Mapping[str, Any]


def manifests() -> Iterator[Manifest]:
    for name in KUSTOMIZATION["resources"]:
        yield from yaml.safe_load_all((FOLDER / name).read_text())


def named(manifest: Manifest) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def of_kind(*kinds: str) -> list[Manifest]:
    return [manifest for manifest in manifests() if manifest["kind"] in kinds]


def pods() -> list[Manifest]:
    return [one["spec"]["template"]["spec"] for one in of_kind("Deployment", "StatefulSet")]


def containers() -> list[Manifest]:
    return [one for pod in pods() for one in [*pod.get("initContainers", []), *pod["containers"]]]


@pytest.mark.parametrize("manifest", list(manifests()), ids=named)
def test_manifest_holds_to_the_schema_of_its_kind(manifest):
    schema = getattr(models, f"V1{manifest['kind']}")  # refuses fields that the API does not know

    schema.model_validate(manifest)


def test_schemas_refuse_a_field_that_does_not_exist():
    (volume, *_) = of_kind("PersistentVolumeClaim")

    with pytest.raises(ValueError, match="extra"):
        models.V1PersistentVolumeClaim.model_validate({**volume, "spec": {**volume["spec"], "size": "1Gi"}})


def test_every_file_of_the_folder_is_used():
    files = {path.name for path in FOLDER.iterdir()} - {"kustomization.yaml", "secrets.env"}

    assert files == set(KUSTOMIZATION["resources"])


def test_every_claim_map_and_password_that_a_pod_names_is_there():
    claims = {one["metadata"]["name"] for one in of_kind("PersistentVolumeClaim")}
    maps = {one["metadata"]["name"] for one in of_kind("ConfigMap")}
    (secret,) = KUSTOMIZATION["secretGenerator"]
    passwords = {
        line.split("=")[0] for line in (FOLDER / "secrets.env").read_text().splitlines() if "=" in line
    }

    used = [
        volume["persistentVolumeClaim"]["claimName"]
        for pod in pods()
        for volume in pod["volumes"]
        if "emptyDir" not in volume
    ]
    assert set(used) == claims
    for container in containers():
        assert {one["configMapRef"]["name"] for one in container.get("envFrom", [])} <= maps
        for variable in container.get("env", []):
            if "valueFrom" in variable:
                reference = variable["valueFrom"]["secretKeyRef"]
                assert reference["name"] == secret["name"]
                assert reference["key"] in passwords


def test_every_variable_that_a_value_names_stands_before_it():
    """Kubernetes leaves a name as it is where the variable comes later or not at all."""
    for container in containers():
        before: set[str] = set()
        for variable in container.get("env", []):
            value = variable.get("value", "")
            assert all(
                f"$({name})" not in value
                for name in ("POSTGRES_PASSWORD", "REDIS_PASSWORD")
                if name not in before
            )
            before.add(variable["name"])


def test_volumes_are_mounted_where_they_are_declared_and_selectors_fit_their_pods():
    for owner in of_kind("Deployment", "StatefulSet"):
        template = owner["spec"]["template"]
        assert owner["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        mounted = {mount["name"] for one in template["spec"]["containers"] for mount in one["volumeMounts"]}
        assert mounted == volumes
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in of_kind("Deployment", "StatefulSet")]
    assert all(service["spec"]["selector"] in labels for service in of_kind("Service"))


def test_addresses_of_database_and_redis_are_services_with_their_ports():
    ports = {
        f"{service['metadata']['name']}:{port['port']}"
        for service in of_kind("Service")
        for port in service["spec"]["ports"]
    }
    values = [
        variable["value"]
        for one in containers()
        for variable in one.get("env", [])
        if "@" in variable.get("value", "")
    ]

    assert values
    for value in values:
        assert value.split("@")[1].split("/")[0] in ports


def test_images_and_settings_are_those_of_this_tree():
    ours = {one["image"] for one in containers() if one["image"].startswith("berth")}
    targets = {
        f"berth-{line.split()[-1]}"
        for line in (REPOSITORY / "Dockerfile").read_text().splitlines()
        if line.startswith("FROM")
    }
    settings = Path(REPOSITORY, "docs", "reference", "settings.md").read_text()
    (declared,) = of_kind("ConfigMap")

    assert ours == targets == {image["name"] for image in KUSTOMIZATION["images"]}
    assert all(f"`{name}`" in settings for name in declared["data"])
