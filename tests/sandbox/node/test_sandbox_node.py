"""terraform/sandbox by itself: nodes are made, reached, broken, mended and gone again. Needs root and podman."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioner import stack
from provisioner.catalog import load
from provisioner.common.errors import GpuprovError
from provisioner.common.events import Events
from provisioner.machines.terraform.binary import find
from provisioner.sandbox import containers, faults, leftovers
from provisioner.sandbox.assets import Assets, prepare
from provisioner.sandbox.hardware import hardware
from provisioner.sandbox.keys import keys
from provisioner.sandbox.network import allocate_octet, of_octet, release_octet
from provisioner.sandbox.runtime import Podman, ulimit_options
from provisioner.spec import load as load_spec
from tests.support.run_processes import until

pytestmark = pytest.mark.sandbox

ROOT = Path(__file__).resolve().parents[3]
MODULE = ROOT / "terraform/sandbox"
HOSTILE = "#!/bin/sh\nprintf '%s' 'a\"b $HOME ${x} %{y}' > /root/user-data-ran\n"


@pytest.fixture(scope="module")
def assets() -> Assets:
    spec = load_spec(ROOT / "examples/dgx-h100.yaml")
    return prepare(stack.solve(spec).values(), Events())


@dataclass
class Workspace:
    """A root module in a directory of its own, over terraform/sandbox."""

    path: Path
    assets: Assets
    name: str
    octet: int

    def write(self, count: int = 1, *, image: str | None = None) -> None:
        catalog = load()
        machine = catalog.machine("dgx-h100")
        names = [f"train-{i}" for i in range(count)]
        for name in names:
            text = json.dumps(hardware(machine, catalog.gpu(machine.gpu_model), name, catalog), sort_keys=True)
            (self.path / f"{name}.json").write_text(text)
        sandbox = {
            "image": image or self.assets.image,
            "runtime": self.assets.podman.runtime,
            "podman": self.assets.podman.path,
            "workspace": str(self.path),
            "network_octet": self.octet,
            "mirror_dir": str(self.assets.mirror),
            "hardware": {name: str(self.path / f"{name}.json") for name in names},
        }
        module = {
            "source": str(MODULE),
            "name": self.name,
            "groups": {"train": {"machine": "dgx-h100", "count": count, "zone": "z"}},
            "ssh_public_key": (self.path / "key.pub").read_text().strip(),
            "user_data": HOSTILE.replace("${", "$${").replace("%{", "%%{"),
            "tags": {"a b": "left out", "team": 'x"$y'},
            "sandbox": sandbox,
        }
        document = {"module": {"nodes": module}, "output": {"nodes": {"value": "${module.nodes.nodes}"}}}
        (self.path / "main.tf.json").write_text(json.dumps(document))

    def terraform(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "TF_CLI_CONFIG_FILE": os.devnull, "TF_IN_AUTOMATION": "1"}
        return subprocess.run(
            [*find().argv, *arguments], cwd=self.path, env=env, capture_output=True, text=True, timeout=300, check=False
        )

    def apply(self) -> str:
        if not (self.path / ".terraform").exists():
            assert self.terraform("init", "-no-color").returncode == 0
        done = self.terraform("apply", "-auto-approve", "-no-color")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ssh(self, command: str) -> subprocess.CompletedProcess[str]:
        nodes = json.loads(self.terraform("output", "-json", "nodes").stdout)
        line = ["ssh", "-i", str(self.path / "key"), "-o", f"UserKnownHostsFile={self.path}/known_hosts"]
        line += [
            "-o",
            "StrictHostKeyChecking=accept-new",
            "-o",
            "BatchMode=yes",
            f"ubuntu@{nodes['train-0']['public_ip']}",
        ]
        attempts: list[subprocess.CompletedProcess[str]] = []

        def is_answered() -> bool:
            attempts.append(subprocess.run([*line, command], capture_output=True, text=True, timeout=300, check=False))
            return attempts[-1].returncode != 255

        until(is_answered)
        return attempts[-1]

    def containers(self) -> list[containers.Container]:
        return containers.list_containers(self.path)


@pytest.fixture
def workspace(tmp_path: Path, assets: Assets) -> Iterator[Workspace]:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    test_workspace = Workspace(tmp_path, assets, f"t-node-{os.getpid()}", allocate_octet(tmp_path))
    test_workspace.write()
    try:
        yield test_workspace
    finally:
        test_workspace.terraform("destroy", "-auto-approve", "-no-color")
        containers.sweep(tmp_path)
        release_octet(tmp_path)


def podman(*arguments: str) -> list[str]:
    """The words that it says."""
    return subprocess.run(["podman", *arguments], capture_output=True, text=True, check=True, timeout=60).stdout.split()


def test_a_node_from_its_making_to_its_end(workspace: Workspace) -> None:
    workspace.apply()
    assert workspace.ssh("sudo -n true && systemctl is-system-running --wait").stdout == "running\n"
    assert workspace.ssh("sudo cat /root/user-data-ran").stdout == 'a"b $HOME ${x} %{y}'
    assert "simulated" in workspace.ssh("cat /etc/gpuprov-sandbox/release").stdout
    assert workspace.ssh("cat /etc/ssh/ssh_host_ed25519_key.pub").stdout not in ("", None)
    second_output = workspace.apply()
    assert "0 added, 0 changed, 0 destroyed" in second_output
    names = [c.name for c in workspace.containers()]
    mounts = podman("inspect", "--format", "{{range .Mounts}}{{.Name}} {{end}}", *names)
    volumes = {*mounts} & {*podman("volume", "ls", "-q")}
    assert volumes
    assert workspace.terraform("destroy", "-auto-approve", "-no-color").returncode == 0
    assert workspace.containers() == []
    assert not volumes & {*podman("volume", "ls", "-q")}


def test_the_monitor_that_a_killed_podman_left_gives_the_port_back(workspace: Workspace, assets: Assets) -> None:
    """Its container is unknown to podman (here: another storage has it), and it listens where the node's sshd is to be
    reached. A process that only calls itself the monitor of somebody's container ends nothing."""
    address, octet = f"127.77.{workspace.octet}.4", workspace.octet
    name = f"gpuprov-{workspace.name}-train-0.{octet}"
    rootfs = assets.podman.run("image", "mount", assets.image).strip()
    other = Podman(assets.podman.path, assets.podman.runtime)
    short = tempfile.mkdtemp(prefix="gpuprov-test-", dir="/tmp")  # podman takes 50 characters of it
    storage = ("--root", str(workspace.path / "storage"), "--runroot", short)
    (script := workspace.path / "script").write_text("read x\n")
    ours = ("--name", name, "--annotation", f"gpuprov.octet={octet}", "--publish", f"{address}:22:22")
    for options in (ours, ("--name", "web")):
        other.run(*storage, "run", "--detach", *ulimit_options(), *options, "--rootfs", f"{rootfs}:O", "sleep", "600")
    ids = {row["Names"][0]: row["Id"] for row in json.loads(other.run(*storage, "ps", "--format", "json"))}
    command = ["conmon", str(script), "-n", name, "-c", ids["web"]]
    try:
        with subprocess.Popen(command, executable="/bin/sh", stdin=subprocess.PIPE) as forged:
            assert is_listening(address)
            assert leftovers.remove(of_octet(octet)) == []
            assert until(lambda: not is_listening(address))
            workspace.apply()
            assert forged.poll() is None
            states = [[other.runtime, "state", ids[container]] for container in (name, "web")]
            monitor, alive = (subprocess.run(argv, capture_output=True, timeout=60, check=False) for argv in states)
            assert (monitor.returncode != 0, json.loads(alive.stdout)["status"]) == (True, "running")
            forged.kill()
    finally:
        other.run(*storage, "rm", "--force", "--time", "0", *ids, check=False)
        assets.podman.run("image", "unmount", assets.image)
        shutil.rmtree(short, ignore_errors=True)


def is_listening(address: str) -> bool:
    """By the kernel's table: a connection would be taken from another listener."""
    number = socket.inet_aton(address)[::-1].hex().upper()
    return f" {number}:0016 00000000:0000 0A " in Path("/proc/net/tcp").read_text()


def test_a_group_that_grows_leaves_its_nodes_alone(workspace: Workspace) -> None:
    workspace.apply()
    ids = {c.node: c.id for c in workspace.containers()}
    workspace.write(count=2)
    workspace.apply()
    after = {c.node: c.id for c in workspace.containers()}
    assert {name: after[name] for name in ids} == ids
    assert sorted(after) == ["", "train-0", "train-1"]


def test_packages_come_signed_from_the_mirror_and_images_by_digest(workspace: Workspace, assets: Assets) -> None:
    workspace.apply()
    solved = assets.localise(stack.solve(load_spec(ROOT / "examples/dgx-h100.yaml"))["dgx"])
    cuda = next(r for r in solved.repositories if r.name == "cuda")
    names = " ".join(f"{p.name}={p.version}" for p in solved.packages if p.repository == "cuda")
    source = f"deb [signed-by=/etc/apt/cuda.asc] {cuda.uri} {cuda.suite} {cuda.components}".strip()
    script = (
        f"set -e; curl -fsS {cuda.key_url} | sudo tee /etc/apt/cuda.asc >/dev/null\n"
        f"echo '{source}' | sudo tee /etc/apt/sources.list.d/cuda.list >/dev/null\n"
        "sudo apt-get -qq update; sudo apt-get -qq install -y linux-headers-$(uname -r) gcc make libc6-dev\n"
        f"sudo apt-get -qq install -y --no-install-recommends {names}\n"
        "sudo modprobe nvidia; nvidia-smi -L"
    )
    done = workspace.ssh(script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("NVIDIA H100 80GB HBM3") == 8
    # The same repository with another key is refused.
    other = keys(workspace.path / "other").public
    wrong = workspace.ssh(
        f"sudo tee /etc/apt/cuda.asc >/dev/null <<'END'\n{other}END\n"
        "sudo rm -rf /var/lib/apt/lists/*; sudo apt-get update"
    )
    assert "NO_PUBKEY" in wrong.stdout + wrong.stderr
    image = solved.images[0]
    ca = assets.registry_ca
    pulled = workspace.ssh(
        "set -e; d=/etc/docker/certs.d/mirror.gpuprov.internal:5000; sudo mkdir -p $d\n"
        f"sudo tee $d/ca.crt >/dev/null <<'END'\n{ca}END\nsudo systemctl start docker\n"
        f"sudo docker pull -q {image.pull}\n"
        f"sudo docker run --rm {image.pull} python3 -c 'x'"
    )
    assert json.loads(pulled.stdout.splitlines()[-1])["torch"] == image.torch, pulled.stderr


def test_a_fault_and_its_clearing_restore_exactly(workspace: Workspace) -> None:
    workspace.apply()
    node = containers.find_node(workspace.path, "train-0").name

    def hardware_json() -> str:
        return containers.execute(node, "cat", "/etc/gpuprov-sandbox/hardware.json")

    original = json.loads(hardware_json())
    faults.inject(node, "gpu-lost", gpu=5)
    faults.inject(node, "ib-port-slow")
    faults.inject(node, "ib-port-slow")
    assert [fault.name for fault in faults.active(node)] == ["gpu-lost", "ib-port-slow"]
    assert json.loads(hardware_json())["nics"][0]["rate_gbps"] == 200
    assert len(faults.clear(node, "gpu-lost")) == 1
    assert [fault.name for fault in faults.active(node)] == ["ib-port-slow"]
    faults.clear(node)
    assert json.loads(hardware_json()) == original
    with pytest.raises(GpuprovError, match="has GPUs 0 to 7"):
        faults.inject(node, "gpu-lost", gpu=8)
    with pytest.raises(GpuprovError, match="does not have"):
        faults.inject(node, "efa-device-lost")


def test_a_container_of_somebody_else_is_refused_and_left_alone(workspace: Workspace, assets: Assets) -> None:
    name = f"gpuprov-{workspace.name}-train-0.{workspace.octet}"
    assets.podman.run(
        "create", "--pull", "never", "--name", name, "--label", "gpuprov.workspace=/elsewhere", assets.image, "true"
    )
    try:
        assert workspace.terraform("init", "-no-color").returncode == 0
        done = workspace.terraform("apply", "-auto-approve", "-no-color")
        assert done.returncode == 1
        assert "belongs to /elsewhere" in done.stdout + done.stderr
        workspace.terraform("destroy", "-auto-approve", "-no-color")
        assert assets.podman.run("container", "inspect", "--format", "{{.Name}}", name).strip() == name
    finally:
        assets.podman.run("rm", "--force", name)


def test_what_a_killed_terraform_left_is_replaced_or_swept(workspace: Workspace) -> None:
    workspace.apply()
    # A Terraform that was killed before it wrote its state.
    (workspace.path / "terraform.tfstate").unlink()
    assert "Apply complete! Resources: 2 added" in workspace.apply()
    (workspace.path / "terraform.tfstate").unlink()
    assert len(containers.sweep(workspace.path)) == 2
    assert workspace.containers() == []


def test_a_making_that_fails_leaves_nothing(workspace: Workspace) -> None:
    workspace.write(image="localhost/gpuprov-no-such-image:1")
    assert workspace.terraform("init", "-no-color").returncode == 0
    assert workspace.terraform("apply", "-auto-approve", "-no-color").returncode == 1
    assert workspace.containers() == []
