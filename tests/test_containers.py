"""The image, the compose file and the Kubernetes example: what can be checked without a container engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import check_jsonschema
import jsonschema
import pytest
import yaml

from relayout_api.settings import Settings

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
DOCKER = ROOT / "docker"
DOCKERFILE = DOCKER / "Dockerfile"
KUBERNETES = DOCKER / "kubernetes" / "relayout.yaml"
PINNED = re.compile(r"\S+:\S+@sha256:[0-9a-f]{64}")


def run(*command: str | Path) -> str:
    """The standard output of a command that must succeed."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    return found


def size(text: str) -> int:
    """The bytes of a size as compose (6g) and Kubernetes (6Gi) write it."""
    number, unit = re.fullmatch(r"(\d+)([kmg]?)i?", text.lower()).groups()  # type: ignore[union-attr]
    return int(number) << {"": 0, "k": 10, "m": 20, "g": 30}[unit]


def seconds_of_grace(arguments: list[str]) -> int:
    return int(arguments[arguments.index("--grace") + 1])


def test_the_compose_file_is_valid() -> None:
    schema = Path(check_jsonschema.__file__).parent / "builtin_schemas" / "vendor" / "compose-spec.json"
    jsonschema.validate(yaml.safe_load((DOCKER / "compose.yaml").read_text()), json.loads(schema.read_text()))


def test_the_compose_file_builds_the_dockerfile() -> None:
    build = services()["relayout"]["build"]
    assert (DOCKER / build["context"] / build["dockerfile"]).resolve() == DOCKERFILE


def test_the_dockerfile_has_no_fault_that_hadolint_knows() -> None:
    assert run(BIN / "hadolint", "--failure-threshold", "style", DOCKERFILE) == ""


def test_the_image_runs_the_service_unprivileged_with_a_health_check() -> None:
    final = DOCKERFILE.read_text().rpartition("\nFROM ")[2]
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", final, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK .*/healthz", final, re.MULTILINE | re.DOTALL)


def test_the_files_that_the_image_copies_exist_and_are_in_the_context() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        name
        for names in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
        for name in names.split()
    }
    assert copied == sent
    assert [name for name in sorted(copied) if not (ROOT / name).exists()] == []


def test_every_image_from_elsewhere_is_pinned_by_its_digest() -> None:
    images = re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE)
    images += [service["image"] for service in services().values() if "build" not in service]
    assert len(images) == 5
    assert [image for image in images if not PINNED.fullmatch(image)] == []


def test_the_services_have_no_privilege_and_write_to_their_volumes_alone() -> None:
    for name, service in services().items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}, name
        assert all("size=" in mount for mount in service.get("tmpfs", [])), name
        assert "mem_limit" in service, name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name


def test_the_limits_cover_the_workers_and_the_grace_period() -> None:
    service = services()["relayout"]
    given = service["environment"]
    # A gigabyte is for the server and the bodies in flight.
    workers = int(given["RELAYOUT_WORKERS"]) * int(given["RELAYOUT_MEMORY_BYTES"])
    assert workers + (1 << 30) <= size(service["mem_limit"])
    assert seconds_of_grace(service["command"]) < int(service["stop_grace_period"].removesuffix("s"))


def test_the_kubernetes_example_is_valid() -> None:
    run(BIN / "kubernetes-validate", "--strict", KUBERNETES)


def test_the_kubernetes_example_has_no_privilege_and_adds_up() -> None:
    documents = {one["kind"]: one for one in yaml.safe_load_all(KUBERNETES.read_text())}
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    given = {one["name"]: one.get("value") for one in container["env"]}
    workers = int(given["RELAYOUT_WORKERS"]) * int(given["RELAYOUT_MEMORY_BYTES"])
    assert workers + (1 << 30) <= size(container["resources"]["limits"]["memory"])
    assert seconds_of_grace(container["args"]) < pod["terminationGracePeriodSeconds"]


def test_servers_of_two_versions_do_not_share_a_queue_on_kubernetes() -> None:
    documents = {one["kind"]: one for one in yaml.safe_load_all(KUBERNETES.read_text())}
    assert documents["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}


FILES = sorted(DOCKER.rglob("*.yaml")) + sorted(DOCKER.rglob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_beside_the_image_can_be_parsed(path: Path) -> None:
    read = json.loads if path.suffix == ".json" else lambda text: list(yaml.safe_load_all(text))
    assert read(path.read_text())


def test_every_setting_that_the_files_give_is_one_of_the_service() -> None:
    given = {
        name
        for path in (DOCKERFILE, DOCKER / "compose.yaml", KUBERNETES)
        for name in re.findall(r"\bRELAYOUT_\w+", path.read_text())
    }
    assert given
    assert given <= {f"RELAYOUT_{name.upper()}" for name in Settings.model_fields}
