"""Which installers are refused before anything starts."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from provisioner import spec
from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.machines.installer import source

CLUSTER = """name: rack
sites:
  lab:
    provider: baremetal
    method: {method}
    {keys}
    install: {{ os: {os}, iso: {iso} }}
    hosts: {{ n1.lab: {host} }}
groups: {{ train: {{ machine: dgx-h100 }} }}
"""
BY = {
    "pxe": ("pxe: { interface: eth1 }", '{ mac: "52:54:00:00:00:01", address: 10.0.0.11 }'),
    "redfish": ("credentials: env:BMC", "{ bmc: bmc1.lab }"),
}


def images(folder: Path, *names: str) -> Path:
    """A folder of netboot images, as Debian's package lays it out."""
    for name in names or ("text",):
        inner = folder / name / "debian-installer" / "amd64"
        inner.mkdir(parents=True)
        for file in ("linux", "initrd.gz"):
            (inner / file).write_bytes(b"x")
    return folder


def cluster(folder: Path, method: str, os: str, iso: str) -> Path:
    keys, host = BY[method]
    file = folder / "cluster.yaml"
    file.write_text(CLUSTER.format(method=method, keys=keys, host=host, os=os, iso=iso))
    return file


def problem_lines(file: Path) -> list[str]:
    loaded = spec.load(file)
    return [f"{problem.line}:{problem.path}: {problem.message}" for problem in spec.unready(file, loaded)]


@pytest.mark.parametrize("method", ["pxe", "redfish"])
def test_validate_refuses_an_installer_that_cannot_install(tmp_path: Path, method: str) -> None:
    (tmp_path / "empty").mkdir()
    images(tmp_path / "one")
    images(tmp_path / "two", "gtk", "text")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "linux").write_bytes(b"x")
    assert problem_lines(cluster(tmp_path, method, "debian-12", "one")) == []
    for iso, system, reason in (
        ("empty", "debian-12", "has no linux beside an initrd.gz"),
        ("half", "debian-12", "has no linux beside an initrd.gz"),
        ("two", "debian-12", "has 2 installers: gtk/debian-installer/amd64, text/debian-installer/amd64"),
        ("one", "ubuntu-24.04", "is a folder, and ubuntu-24.04 is installed from an image"),
    ):
        assert problem_lines(cluster(tmp_path, method, system, iso)) == [
            f"7:sites.lab.install.iso: {tmp_path / iso} {reason}"
        ]
    missing = problem_lines(cluster(tmp_path, method, "debian-12", "nosuch"))
    assert len(missing) == (1 if method == "redfish" else 0)  # up needs it for the one, and not for the other


def test_a_distribution_without_an_unattended_installer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GpuprovError, match="cannot install rocky-9 unattended"):
        source.refuse_unfit("rocky-9", images(tmp_path), network=True)


def test_an_image_is_refused_where_a_folder_is_needed_and_where_it_is_empty(tmp_path: Path) -> None:
    image = tmp_path / "debian.iso"
    image.touch()
    with pytest.raises(GpuprovError, match="looks for a CD"):
        source.refuse_unfit("debian-12", image, network=True)
    with pytest.raises(GpuprovError, match="is empty"):
        source.refuse_unfit("debian-12", image, network=False)
    image.write_bytes(b"x")
    source.refuse_unfit("debian-12", image, network=False)


def test_kernel_and_initrd_are_of_one_folder(tmp_path: Path) -> None:
    """Else the kernel of one version would start with the initrd of another."""
    images(tmp_path)
    (tmp_path / "linux").write_bytes(b"another")
    linux, initrd = source.netboot(tmp_path)
    assert linux.parent == initrd.parent


@pytest.mark.parametrize("kind", [GpuprovError, ProviderError])
@pytest.mark.parametrize("expected_sha256", [None, "0" * 64])
def test_an_image_that_is_not_the_named_one_is_refused(
    tmp_path: Path, kind: type[GpuprovError], expected_sha256: str | None
) -> None:
    image = tmp_path / "server.iso"
    image.write_bytes(b"another one")
    actual_sha256 = hashlib.sha256(b"another one").hexdigest()
    with pytest.raises(
        kind, match=f"has the SHA-256 {actual_sha256}, not {expected_sha256 or 'any that cluster.yaml names'}"
    ) as refused:
        source.refuse_other(image, expected_sha256, kind)
    assert type(refused.value) is kind
    source.refuse_other(image, actual_sha256, kind)
    source.refuse_other(tmp_path, expected_sha256, kind)
