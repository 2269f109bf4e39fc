"""A rack that is described by the addresses of its BMCs, as its owner meets gpuprov: from power-off to healthy in one
`gpuprov up`, with what goes wrong on some of the machines, and with neighbours that stay as they were."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import urllib3

from provisioner.machines.installer.seed import Target
from provisioner.sandbox import network
from provisioner.stack import lockfile
from tests.support import bmc as fake
from tests.support import bmc_sandbox
from tests.support.aws_machines import Machines
from tests.support.baremetal_sandbox import Box
from tests.support.installer_disks import Server
from tests.support.sandbox_cluster import Done, SandboxCluster

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

TREES = ("nvidia-dgx-h100", "hpe-apollo6500-xl675d-a100", "dell-poweredge-r750-h100pcie")
NAMES = tuple(f"dgx{number:02d}.lab" for number in range(1, 5))
NEIGHBOURS = ("dgx05.lab", "dgx06.lab")
FILE = """
name: {name}
sites:
  rack:
    provider: baremetal
    method: redfish
    credentials: env:BMC
    install: {{ iso: installer.iso, sha256: {digest}, serve: 127.0.0.1, reinstall: [{reinstall}] }}
    hosts:
{hosts}
groups: {{ train: {{ machine: dgx-a100-40gb, count: 4 }} }}
verify: {{ level: quick }}
"""


@dataclass
class Rack:
    """Four machines of a file and two that are in none."""

    made: SandboxCluster
    machines: Machines
    bmcs: dict[str, fake.Bmc]
    installs: dict[str, list[str]] = field(default_factory=dict)
    """Host → token of each installation that was started on it."""
    disks: dict[str, Server] = field(default_factory=dict)
    """Host → what the installer finds there: NVMe disks with two ports, blank until it was installed."""
    kill: tuple[str, subprocess.Popen[str]] | None = None
    """Host at whose start this process is killed."""
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self, host: str, image: str) -> None:
        """The machine is switched on: of an image it becomes what the seed says."""
        if not image:
            return
        with urllib3.PoolManager(cert_reqs="CERT_NONE") as web:
            target = bmc_sandbox.read(web.request("GET", image, retries=False, timeout=10).data)
        assert self.bmcs[host].system["SerialNumber"] in target["serials"], "an installer started on another machine"
        fields = {**target, "serials": tuple(target["serials"]), "fixed": None}
        _, refused = self.disks[host].guard("disks", Target(**fields))
        assert not refused, refused
        self.disks[host].root.joinpath("dev/nvme0n1").write_bytes(b"\x55\xaa" * 2048)
        self.installs.setdefault(host, []).append(target["token"])
        self.threads.append(threading.Thread(target=self._boot, args=(host, target), daemon=True))
        self.threads[-1].start()
        if self.kill and self.kill[0] == host:
            os.kill(self.kill[1].pid, signal.SIGKILL)
            self.kill = None

    def _boot(self, host: str, target: dict[str, str]) -> None:
        number = network.FIRST + NAMES.index(host)
        box = Box(host, "dgx-a100-40gb", f"{self.machines.prefix}.{number}", "train", target["ssh_key"])
        self.machines.boot(box, f"127.77.{self.machines.octet}.{number}")
        argv = ["podman", "exec", "-i", self.machines.running[host], "sh", "-c", "cat >/etc/gpuprov-installed"]
        subprocess.run(argv, input=target["token"], text=True, check=True, timeout=60)

    def write(self, reinstall: str = "") -> None:
        folder = self.made.file.parent
        (folder / "installer.iso").write_bytes(b"an installer")
        digest = hashlib.sha256(b"an installer").hexdigest()
        octet, first = self.machines.octet, network.FIRST
        hosts = "".join(
            f'      {host}: {{ address: 127.77.{octet}.{first + number}, bmc: "{self.bmcs[host].address}", '
            f"serial: {self.bmcs[host].system['SerialNumber']} }}\n"
            for number, host in enumerate(NAMES)
        )
        self.made.file.write_text(
            FILE.format(name=self.made.name, digest=digest, hosts=hosts, reinstall=reinstall), encoding="utf-8"
        )

    def up(self) -> Done:
        return self.made.run("up", self.made.file, "--yes", "--json")

    def counts(self) -> list[int]:
        return [len(self.installs.get(host, ())) for host in NAMES]

    def left_alone(self) -> None:
        """Nobody else's machine was asked anything, and nothing is left in a BMC."""
        for host in NEIGHBOURS:
            assert (self.bmcs[host].asked, self.bmcs[host].changes, self.bmcs[host].system["PowerState"]) == (
                0, [], "Off",
            )  # fmt: skip
        for host in NAMES:
            bmc = self.bmcs[host]
            assert (bmc.inserted, bmc._boot()["BootSourceOverrideEnabled"] == "Once") == ([], False), host
            attributes = bmc.own.get("Attributes", {})
            assert attributes.get("ServerBoot.1.FirstBootDevice", "Normal") == "Normal", host


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    folder, patch = tmp_path_factory.mktemp("bmc-fleet"), pytest.MonkeyPatch()
    patch.setenv("BMC_USER", "admin")
    patch.setenv("BMC_PASSWORD", "not-a-real-one")
    sandbox_cluster = SandboxCluster(folder / "cluster.yaml", f"t-bmc-{os.getpid() % 10_000}")
    sandbox_cluster.gpuprov = [sys.executable, "-m", "tests.support.bmc_sandbox"]
    pem = fake.certificate(folder)
    with contextlib.ExitStack() as running:
        bmcs = {}
        for number, host in enumerate((*NAMES, *NEIGHBOURS)):
            name = TREES[number % len(TREES)]
            bmc = fake.Bmc(copy.deepcopy(fake.tree(name)), fake.MANNERS[name])
            bmc.system.update(SerialNumber=f"DGX-{number + 1:04d}", PowerState="Off")
            bmcs[host] = running.enter_context(fake.serving(bmc, pem))
        text = 'name: {}\nsites: {{ rack: {{ provider: baremetal, hosts: {{ "d[1-4].lab": {{}} }} }} }}\n'
        sandbox_cluster.file.write_text(text.format(sandbox_cluster.name) + FILE.partition("hosts}\n")[2].format())
        locked = sandbox_cluster.run("lock", sandbox_cluster.file)
        assert locked.status == 0, locked.stderr
        lock = lockfile.read(sandbox_cluster.file.with_name("cluster.lock"))
        assert lock is not None
        machines = Machines(folder, sandbox_cluster.name, lock)
        test_rack = Rack(sandbox_cluster, machines, bmcs)
        for host, bmc in bmcs.items():
            test_rack.disks[host] = Server(folder / "disks" / host)
            for number in range(2):
                test_rack.disks[host].two_ports(number)
            bmc.booted = lambda _, image, host=host: test_rack.start(host, image)  # type: ignore[misc]
        test_rack.write()
        try:
            yield test_rack
        finally:
            for thread in test_rack.threads:
                thread.join(60)
            machines.close()
            patch.undo()


def test_machines_whose_bmcs_fail_are_named_and_the_others_are_healthy(rack: Rack) -> None:
    working, busy, locked_out, empty = NAMES
    rack.bmcs[busy].faults.busy = 10_000
    rack.bmcs[locked_out].faults.wrong_password = True
    rack.bmcs[empty].faults.never_attaches = True
    up = rack.up()
    assert up.status == 3, up.stderr
    assert "failed" in up.json, up.stderr
    message = up.json["failed"]["rack"]["message"]
    assert "3 of 4 machines could not be installed" in message
    for host, reason in (
        (busy, "Redfish service is not available now"),
        (locked_out, "does not accept the user and password"),
        (empty, "not showing the image as attached"),
    ):
        assert any(line.strip().startswith(f"{host}: ") and reason in line for line in message.splitlines()), message
    assert [(node["name"], node["ok"]) for node in up.json["nodes"]] == [("train-0", True)]
    assert rack.counts() == [1, 0, 0, 0] and working in rack.installs
    rack.left_alone()


def test_killed_and_run_again_installs_nobody_twice(rack: Rack) -> None:
    _, killed, dead, dropping = NAMES
    for host in NAMES:
        rack.bmcs[host].faults = fake.Faulty()
    rack.bmcs[dead].faults.never_boots = True
    rack.bmcs[dropping].faults.drops_session = 400
    process = rack.made.start("up", rack.made.file, "--yes", "--json")
    rack.kill = (killed, process)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    up = rack.up()
    assert up.status == 3, up.stderr
    message = up.json["failed"]["rack"]["message"]
    assert f"{dead}: " in message and killed not in message and dropping not in message, message
    assert sorted(node["name"] for node in up.json["nodes"] if node["ok"]) == ["train-0", "train-1", "train-3"]
    assert rack.counts() == [1, 1, 0, 1]
    rack.left_alone()


def test_all_of_them_are_healthy_and_then_there_is_nothing_to_do(rack: Rack) -> None:
    dead = NAMES[2]
    rack.bmcs[dead].faults = fake.Faulty()
    rack.write(reinstall=str(rack.bmcs[dead].system["SerialNumber"]))
    up = rack.up()
    assert up.status == 0, up.stderr
    assert [node["ok"] for node in up.json["nodes"]] == [True] * 4
    change_counts = {host: len(bmc.changes) for host, bmc in rack.bmcs.items()}
    second = rack.up()
    assert (second.status, second.json["changes"]) == (0, {"resources": 0, "configured": 0}), second.stderr
    assert change_counts == {host: len(bmc.changes) for host, bmc in rack.bmcs.items()}, "a change for nothing"
    assert rack.counts() == [1, 1, 1, 1]
    rack.left_alone()
