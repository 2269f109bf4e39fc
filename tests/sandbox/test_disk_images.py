"""A disk for bare metal in the sandbox: built by the roles, made bootable, booted in QEMU, rebooted, published; then
written to an empty machine, and proven there."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.lifecycle import second_boot
from provisioner.lifecycle.images.builder import Builder
from provisioner.lifecycle.images.disk import layout, tools
from provisioner.lifecycle.images.recipe import open_recipe, opened, written
from provisioner.lifecycle.images.work import of_group
from provisioner.stack import lockfile
from provisioner.verify.facts import read
from tests.support.bmc_site import powered_off_site
from tests.support.sandbox_cluster import SandboxCluster

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

RECIPE = """\
name: t-metal
sites: { rack: { provider: baremetal } }
groups: { dgx: { machine: workstation-rtx4090 } }
image: { targets: { dgx: { disk: { path: disks } } } }
"""
DEADLINE_S = 3600
"""Two boots by software emulation, on a computer that does other things beside."""
SETTLED_S = 1500.0


BUILDERS_OWN = {
    "ssh_host_ed25519_key", "ssh_host_ed25519_key.pub", "authorized_keys", "90-gpuprov-sandbox", "90-cloud-init-users",
    "seed",
}  # fmt: skip
"""Files that would let somebody into every machine of the disk, or were one machine's."""


def names(raw: Path, command: str) -> set[str]:
    """What debugfs prints of the root file system, in words and parts of paths."""
    partition = f"{raw}?offset={(1 + layout.ESP_MIB) << 20}"
    done = subprocess.run(["debugfs", "-R", command, partition], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.replace("/", " ").split())


@dataclass
class Built:
    """A sandbox build of the recipe, and what it says of its target."""

    shell: SandboxCluster
    file: Path
    build: str
    target: dict[str, Any]

    @property
    def folder(self) -> Path:
        return self.file.parent / ".gpuprov" / "t-metal.image.sandbox" / "disks"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    try:
        tools.require()
    except GpuprovError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    file = tmp_path_factory.mktemp("metal") / "t-metal.yaml"
    file.write_text(RECIPE, encoding="utf-8")
    shell = SandboxCluster(file, "t-metal")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.support.sandbox_cluster.DEADLINE_S", DEADLINE_S)
        done = shell.run("image", "build", file, "--sandbox", "--yes", "--json")
    assert done.status == 0, done.stderr
    target = done.json["targets"]["dgx"]
    try:
        yield Built(shell, file, done.json["build"], target)
    finally:
        for image in target["ids"].values():
            subprocess.run(["podman", "rmi", "--force", image], capture_output=True, check=False, timeout=60)


def test_a_disk_boots_twice_with_the_locked_stack(built: Built) -> None:
    target, disk = built.target, built.target["disk"]
    assert [(proof["level"], proof["unknown"]) for proof in disk["proofs"]] == [("image", 0)] * 2
    assert disk["kernel"] == target["kernel"]
    assert f"linux-image-{disk['kernel']}" in target["packages"]
    for kind, row in disk["files"].items():
        with (built.folder / row["file"]).open("rb") as stream:
            assert hashlib.file_digest(stream, "sha256").hexdigest() == row["sha256"], kind
    raw, copy = (built.folder / disk["files"][kind]["file"] for kind in ("raw", "qcow2"))
    subprocess.run(["qemu-img", "compare", raw, copy], check=True, capture_output=True, timeout=900)
    for folder in ("/etc/ssh", "/etc/sudoers.d", "/home/ubuntu/.ssh", "/etc/gpuprov-sandbox"):
        assert not names(raw, f"ls -p {folder}") & BUILDERS_OWN, folder
    assert names(raw, "cat /etc/machine-id") == set()
    document = json.loads(raw.with_suffix(".json").read_text(encoding="utf-8"))
    assert (document["simulated"], document["build"]) == (True, built.build)
    overview = built.shell.run("image", "list", built.file, "--json").json
    assert overview["channels"] == {"nightly": built.build}
    argv = ["pgrep", "-f", f"qemu-system.*{built.file.parent}"]
    assert subprocess.run(argv, capture_output=True, check=False, timeout=30).stdout == b""


def test_it_installs_an_empty_machine_which_is_as_locked(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of bare metal: off, its disk empty, installed from that disk through its BMC, started from its own disk,
    then proven over ssh as the disk was. The driver's modules and the GPUs are simulated, and level `image` asks for
    neither."""
    if lacks := [
        program for program in ("xorriso", "grub-mkrescue", "mformat", "zstd") if shutil.which(program) is None
    ]:
        pytest.skip(f"needs {' '.join(lacks)}")
    recipe = open_recipe(built.file, sandbox=True)
    lock = lockfile.read(recipe.cluster.paths.lock_file)
    assert lock is not None
    cluster = opened(recipe, written(recipe, built.build, "dgx", "metal"))
    builder = Builder(cluster, "dgx", of_group(lock, cluster, "dgx"), None)
    raw = built.target["disk"]["files"]["raw"]
    with powered_off_site(tmp_path, (built.folder / raw["file"], raw["sha256"]), monkeypatch, "golden-disk") as site:
        site.fleet_plan, site.paths = builder.plan, cluster.paths
        nodes = site.up()
        assert [bool(image) for image in site.machine.starts] == [True, False], site.machine.said()[-3000:]
        assert site.contact(nodes) == {}
        second_boot.settle(cluster, nodes[0], SETTLED_S, lambda: None)
        assert json.loads(site.ask("cat /etc/gpuprov/image.json"))["build"] == built.build
        assert int(site.ask("df --output=size -B1 / | tail -n 1")) > 35 * 2**30, "it has grown to the machine's disk"
        facts = read(builder.prove_installed(nodes[0]))
        assert facts.kernel == built.target["disk"]["kernel"]
        site.lines.append(f"level image has passed on {nodes[0].name}, {len(lock.groups['dgx'].packages)} packages")
