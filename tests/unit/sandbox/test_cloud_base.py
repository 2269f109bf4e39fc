"""Nodes as bare as a cloud's own image is."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from provisioner.common.errors import GpuprovError
from provisioner.sandbox import cloud_base, image, node_layer
from provisioner.sandbox.distribution import TOOLS

ROLES = Path(__file__).resolve().parents[3] / "ansible" / "roles"


def of_the_roles() -> set[str]:
    """What roles take from the distribution, by their defaults."""
    names: set[str] = set()
    for file in ROLES.glob("*/defaults/main.yml"):
        for name, value in (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).items():
            if name.endswith(("_distribution_packages", "base_packages", "_docker_package")):
                names |= {value} if isinstance(value, str) else {item for item in value if isinstance(item, str)}
    return names


def test_what_a_role_installs_is_not_there_before() -> None:
    preinstalled = of_the_roles() & set(image.PACKAGES)
    assert {"docker.io", "mdadm", "fio", "rdma-core", "dmidecode"} <= preinstalled
    assert preinstalled & set(cloud_base.PACKAGES) == {"unattended-upgrades"}  # Debian's cloud images have it
    assert set(cloud_base.LACKS) < set(image.PACKAGES)


def test_compilers_come_from_the_distribution() -> None:
    def stand_ins(files: object) -> set[str]:
        return {name for name in TOOLS for path in files if path.rpartition("/")[2].startswith(f"{name}_")}  # type: ignore[attr-defined]

    assert stand_ins(node_layer.node_files()) == set(TOOLS)
    assert stand_ins(node_layer.node_files(prepared=False)) == set()


def test_the_everyday_image_is_another_one_and_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cloud_base.VARIABLE, raising=False)
    assert cloud_base.machine_reference() == image.node_reference()
    monkeypatch.setenv(cloud_base.VARIABLE, "cloud")
    assert cloud_base.machine_reference() == cloud_base.reference() != image.node_reference()
    assert "sources.list" not in image.setup(prepared=False)  # Debian's mirror is asked
    monkeypatch.setenv(cloud_base.VARIABLE, "cloudy")
    with pytest.raises(GpuprovError, match="'cloudy' is not a base for the sandbox"):
        cloud_base.machine_reference()
