"""What a sandbox node says it is, for every distribution that cluster.yaml can name."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.sandbox.node import boot, state
from provisioner.sandbox.systems import OWN, system
from provisioner.spec.schema import schema
from provisioner.stack.candidates import candidates
from provisioner.verify.parsers import os_release

CODENAMES = {candidate.version: candidate.facts["codename"] for candidate in candidates("os")}


def test_every_distribution_of_cluster_yaml_can_be_sandboxed() -> None:
    systems = {os for os in CODENAMES if os in str(schema("cluster"))}
    assert systems == set(CODENAMES)
    assert [system(os)["name"] for os in CODENAMES] == list(CODENAMES)


@pytest.mark.parametrize("os", sorted(set(CODENAMES) - {OWN}))
def test_ubuntu_is_told_and_that_it_is_sandboxed(os: str) -> None:
    text = system(os)["files"]["usr/lib/os-release"]
    release = os_release.parse(text)
    assert (release.name, release.codename) == (os, CODENAMES[os])
    assert "sandbox on debian 12" in (release.pretty or "")
    assert "Debian" not in text  # Ansible would take it for Debian


def test_another_one_is_refused() -> None:
    with pytest.raises(GpuprovError, match=r"the sandbox cannot show ubuntu-26\.04"):
        system("ubuntu-26.04")


def test_a_boot_writes_the_files_and_leaves_what_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "ROOT", tmp_path)
    for folder in ("usr/lib", "etc/apt/apt.conf.d"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "usr/lib/os-release").write_text("ID=debian\n")
    state.write(state.HARDWARE, {"os": system("ubuntu-24.04")})
    boot.distribution()
    written = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}
    assert os_release.parse((tmp_path / "usr/lib/os-release").read_text()).name == "ubuntu-24.04"
    assert "DISTRIB_CODENAME=noble" in (tmp_path / "etc/lsb-release").read_text()
    boot.distribution()
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()} == written
    state.write(state.HARDWARE, {"os": system(OWN)})
    boot.distribution()
    assert {file: file.stat().st_mtime_ns for file in written if "hardware" not in file.name} == {
        file: at for file, at in written.items() if "hardware" not in file.name
    }
