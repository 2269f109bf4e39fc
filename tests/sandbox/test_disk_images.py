"""A disk for bare metal in a rehearsal: built by the roles, made bootable, booted in QEMU, rebooted, published."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from provisioner.errors import GpuprovError
from provisioner.images.disk import layout, tools
from tests.support.rehearsal import Rehearsal

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

RECIPE = """\
name: t-metal
sites: { rack: { provider: baremetal } }
groups: { dgx: { machine: workstation-rtx4090 } }
image: { targets: { dgx: { disk: { path: disks } } } }
"""
DEADLINE_S = 3600
"""Two boots by software emulation, on a computer that does other things beside."""


BUILDERS_OWN = {
    "ssh_host_ed25519_key", "ssh_host_ed25519_key.pub", "authorized_keys", "90-gpuprov-sandbox", "90-cloud-init-users",
    "seed",
}  # fmt: skip
"""Files that would let somebody into every machine of the disk, or were one machine's."""


def names(raw: Path, command: str) -> set[str]:
    """What debugfs prints of the root file system, in words and parts of paths."""
    place = f"{raw}?offset={(1 + layout.ESP_MIB) << 20}"
    done = subprocess.run(["debugfs", "-R", command, place], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.replace("/", " ").split())


@pytest.fixture
def there() -> None:
    try:
        tools.require()
    except GpuprovError as error:
        pytest.skip(f"{error.message}: {error.hint}")


@pytest.mark.usefixtures("there")
def test_a_disk_boots_twice_with_the_locked_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.rehearsal.DEADLINE_S", DEADLINE_S)
    file = tmp_path / "t-metal.yaml"
    file.write_text(RECIPE, encoding="utf-8")
    shell = Rehearsal(file, "t-metal")
    done = shell.run("image", "build", file, "--sandbox", "--yes", "--json")
    assert done.status == 0, done.stderr
    target = done.json["targets"]["dgx"]
    try:
        disk, folder = target["disk"], tmp_path / ".gpuprov" / "t-metal.image.sandbox" / "disks"
        assert [(proof["level"], proof["unknown"]) for proof in disk["proofs"]] == [("image", 0)] * 2
        assert disk["kernel"] == target["kernel"]
        assert f"linux-image-{disk['kernel']}" in target["packages"]
        for kind, one in disk["files"].items():
            with (folder / one["file"]).open("rb") as stream:
                assert hashlib.file_digest(stream, "sha256").hexdigest() == one["sha256"], kind
        raw, copy = (folder / disk["files"][kind]["file"] for kind in ("raw", "qcow2"))
        subprocess.run(["qemu-img", "compare", raw, copy], check=True, capture_output=True, timeout=900)
        for folder in ("/etc/ssh", "/etc/sudoers.d", "/home/ubuntu/.ssh", "/etc/gpuprov-sandbox"):
            assert not names(raw, f"ls -p {folder}") & BUILDERS_OWN, folder
        assert names(raw, "cat /etc/machine-id") == set()
        told = json.loads(raw.with_suffix(".json").read_text(encoding="utf-8"))
        assert (told["simulated"], told["build"]) == (True, done.json["build"])
        overview = shell.run("image", "list", file, "--json").json
        assert overview["channels"] == {"nightly": done.json["build"]}
        running = subprocess.run(
            ["pgrep", "-f", f"qemu-system.*{tmp_path}"], capture_output=True, check=False, timeout=30
        )
        assert running.stdout == b""
    finally:
        for image in target["ids"].values():
            subprocess.run(["podman", "rmi", "--force", image], capture_output=True, check=False, timeout=60)
