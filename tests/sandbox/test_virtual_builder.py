"""A disk for bare metal with packages of a vendor's signed repository: built on a virtual machine, booted, published.

The vendor is this machine (tests/support/vendor.py). Everything else is as with NVIDIA's: the real lock, mmdebstrap of
Debian, the roles over ssh, DKMS's compiler, docker's pull by digest, level `image`.

It was not yet run as a whole: each of its steps was seen on one build that was held where one failed and gone on with,
and whose initramfs was made by hand with MODULES=dep, and not again: emulated, one with all modules took more than ten
minutes.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import threading
import time
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.lifecycle.images.disk import tools
from provisioner.sandbox import keys
from provisioner.stack import lockfile
from provisioner.stack.models import Stack
from tests.support import vendor
from tests.support.sandbox_cluster import SandboxCluster

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

PLAIN = """\
name: NAME
sites: { rack: { provider: baremetal } }
groups: { ws: { machine: workstation-rtx4090 } }
stack: { os: debian-12 }
"""
RECIPE = """\
name: t-vm
sites: { rack: { provider: baremetal } }
groups: { ws: { machine: workstation-rtx4090 } }
stack:
  os: debian-12
  driver: "DRIVER"
  cuda: "CUDA"
  nccl: "NCCL"
  containers: ["localhost:PORT/lab/tool:1"]
  repositories:
    cuda: { uri: "http://HERE:PORT/apt/cuda/debian-12/", key: signing.asc, fingerprint: FINGERPRINT }
    container-toolkit:
      { uri: "http://HERE:PORT/apt/container-toolkit/debian-12/", key: signing.asc, fingerprint: FINGERPRINT }
image:
  boots: 1
  targets: { ws: { disk: { path: disks, formats: [raw] } } }
"""
DEADLINE_S = 3 * 3600
"""Installation and two boots by software emulation, on a computer that does other things beside."""


@pytest.fixture
def require_builder() -> None:
    try:
        tools.require(builder=True)
    except GpuprovError as error:
        pytest.skip(f"{error.message}: {error.hint}")


def forwarded(folder: Path, port: int, over: threading.Event) -> None:
    """On the builder localhost:port is the registry here: docker takes one without TLS from there alone."""
    while not over.is_set():
        for config in folder.glob(".gpuprov/t-vm.image/builds/*/ws/build/.gpuprov/*/ssh/config"):
            command = ["ssh", "-F", str(config), "-o", "ControlPath=none", "-o", "ExitOnForwardFailure=yes", "-N",
                       "-R", f"{port}:127.0.0.1:{port}", "ws-0"]  # fmt: skip
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            while child.poll() is None and not over.is_set():
                time.sleep(0.5)
            child.terminate()
            child.wait(10)
        over.wait(2)


def _pinned(text: str, stack: Stack) -> str:
    """The versions that the vendor has."""
    for name in ("driver", "cuda", "nccl"):
        text = text.replace(name.upper(), stack.components[name].version)
    return text


@pytest.mark.usefixtures("require_builder")
def test_a_disk_is_built_on_a_virtual_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.sandbox_cluster.DEADLINE_S", DEADLINE_S)
    vendor_keys = keys.keys(tmp_path / "keys")
    plain = tmp_path / "lock" / "t-plain.yaml"
    plain.parent.mkdir()
    plain.write_text(PLAIN.replace("NAME", "t-plain"), encoding="utf-8")
    assert SandboxCluster(plain, "t-plain").run("lock", plain, "--sandbox").status == 0
    lock = lockfile.read(plain.parent / ".gpuprov" / "t-plain.sandbox" / "cluster.lock")
    assert lock is not None
    stack = lock.groups["ws"]
    root = tmp_path / "vendor"
    root.mkdir()
    vendor.write(root, stack, vendor_keys, monkeypatch)
    busybox = Path("/bin/busybox").read_bytes()
    images = {"lab/tool:1": vendor.image("localhost/lab/tool:1", busybox)}
    over = threading.Event()
    with vendor.served(root, images) as port:
        file = tmp_path / "t-vm.yaml"
        text = RECIPE.replace("PORT", str(port)).replace("HERE", vendor.address())
        file.write_text(_pinned(text, stack).replace("FINGERPRINT", vendor_keys.fingerprint), encoding="utf-8")
        (tmp_path / "signing.asc").write_text(vendor_keys.public, encoding="utf-8")
        forward = threading.Thread(target=forwarded, args=(tmp_path, port, over), daemon=True)
        forward.start()
        try:
            done = SandboxCluster(file, "t-vm").run("image", "build", file, "--yes", "--json")
        finally:
            over.set()
            forward.join(20)
    assert done.status == 0, done.stderr
    target = done.json["targets"]["ws"]
    disk = target["disk"]
    assert [(proof["level"], proof["unknown"]) for proof in disk["proofs"]] == [("image", 0)]
    raw = tmp_path / "disks" / disk["files"]["raw"]["file"]
    with raw.open("rb") as stream:
        assert hashlib.file_digest(stream, "sha256").hexdigest() == disk["files"]["raw"]["sha256"]
    document = json.loads(raw.with_suffix(".json").read_text(encoding="utf-8"))
    assert (document["simulated"], document["build"]) == (False, done.json["build"])
    assert not list(tmp_path.glob(".gpuprov/*/builds/*/machines"))
    running = subprocess.run(["pgrep", "-f", f"qemu-system.*{tmp_path}"], capture_output=True, check=False, timeout=30)
    assert running.stdout == b""
    assert raw.stat().st_blocks * 512 < 8 << 30
