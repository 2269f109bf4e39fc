"""Four machines from power-off to ssh through their BMCs, with everything that goes wrong on some of them: the others
are served, neighbours stay as they were, and a run that is killed at any request is gone on with."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import LockedError, ProviderError
from provisioner.common.events import Events
from provisioner.common.paths import ClusterPaths, private_dir
from provisioner.machines import bmc as redfish
from provisioner.machines import installing
from provisioner.machines.bmc import RedfishMachines
from provisioner.machines.came_up import greets
from provisioner.machines.existing import Way
from provisioner.machines.installer import iso, serve
from provisioner.machines.installer.report import Report
from provisioner.machines.installer.seed import Target
from provisioner.machines.journal import Installation, Journal
from provisioner.machines.providers import base
from provisioner.machines.providers.hosts import Host
from provisioner.plan.models import Plan
from provisioner.transport import process, ssh_pins
from tests.support import bmc as fake
from tests.support.plans import cluster_spec, plan

pytestmark = pytest.mark.heavy

KEY = "ssh-ed25519 " + "A" * 68
TREE = "nvidia-dgx-h100"


class Sshd:
    """Greets as sshd does once its machine is up; `says` is what is in its /etc/gpuprov-installed."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.up = False
        self.says = ""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                with connection:
                    if self.up:
                        connection.sendall(b"SSH-2.0-test\r\n")


@dataclass
class Rack:
    """BMCs with their machines, of which a site names some."""

    folder: Path
    bmcs: dict[str, fake.Bmc]
    sshds: dict[str, Sshd]
    named: list[str]
    made: list[Target] = field(default_factory=list)
    installs: dict[str, list[str]] = field(default_factory=dict)
    reinstall: tuple[str, ...] = ()
    said: list[str] = field(default_factory=list)
    pinned: bool = True

    credentials = "env:BMC"
    installation: Any = None

    def listed(self, groups: object = ()) -> list[Host]:
        return [
            Host(
                name, "train", "127.0.0.1", self.sshds[name].port, bmc=self.bmcs[name].address,
                serial=serial(self.bmcs[name]) if self.pinned else "",
            )
            for name in self.named
        ]  # fmt: skip

    def host_key(self, machine: str) -> str | None:
        return None

    def machines(self, plan: Plan, wait_s: float = 3.0) -> RedfishMachines:
        image = self.folder / "debian.iso"
        image.write_bytes(b"x")
        digest = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
        installation = base.Installation(
            "debian-12", "by-size", image, digest, "127.0.0.1", "http://deb.debian.org/debian", self.reinstall
        )
        paths = ClusterPaths(self.folder / "cluster.yaml", "lab", sandbox=False)
        transport = Way(paths, {}, {}, lambda: KEY, lambda: "1234", frozenset())
        events = Events()
        events.subscribe(lambda event: self.said.append(f"{event.node}: {event.message}"))
        return RedfishMachines(
            "here", self, self, installation, [], transport, events, wait_s, self.folder, "ubuntu", lambda _: None
        )  # fmt: skip

    @property
    def inserted(self) -> dict[str, list[str]]:
        return {name: bmc.inserted for name, bmc in self.bmcs.items()}

    def installed(self) -> dict[str, int]:
        return {name: len(self.installs.get(name, [])) for name in self.bmcs}


def serial(bmc: fake.Bmc) -> str:
    return str(bmc.system["SerialNumber"])


@pytest.fixture
def rack(tmp_path: Path, pem: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Rack]]:
    monkeypatch.setenv("BMC_USER", "admin")
    monkeypatch.setenv("BMC_PASSWORD", "not-a-real-one")
    monkeypatch.setattr(installing, "SSH_PAUSE_S", 0.05)
    monkeypatch.setattr("provisioner.machines.redfish.machine.POLL_S", 0.02)
    monkeypatch.setattr("provisioner.machines.redfish.machine.MEDIA_S", 1.0)
    monkeypatch.setattr("provisioner.machines.redfish.machine.HOST_MEDIA_S", 1.0)
    with contextlib.ExitStack() as running:

        def build(named_count: int = 4, neighbours: int = 2, trees: tuple[str, ...] = (TREE,)) -> Rack:
            test_rack = Rack(tmp_path, {}, {}, [])
            for number in range(named_count + neighbours):
                name = f"dgx{number:02d}.lab"
                tree = trees[number % len(trees)]
                known = copy.deepcopy(fake.tree(tree))
                bmc = fake.Bmc(known, fake.MANNERS[tree])
                bmc.system.update(SerialNumber=f"GPU-{number:04d}", PowerState="Off")
                for resource in known.values():
                    if str(resource.get("@odata.type")).startswith("#Chassis.v"):
                        resource["SerialNumber"] = f"CH-{number:04d}"
                test_rack.bmcs[name] = running.enter_context(fake.serving(bmc, pem))
                test_rack.sshds[name] = Sshd()
                bmc.booted = lambda _, image, name=name: _boots(test_rack, name, image)  # type: ignore[misc]
                if number < named_count:
                    test_rack.named.append(name)

            def write(distribution: str, installer: Path, target: Target, out: Path) -> Path:
                test_rack.made.append(target)
                out.write_bytes(b"\0" * 32768 + b"\x01CD001\x01" + target.token.encode())
                return out

            def came_up(self: RedfishMachines, host: Host, report: Any) -> bool:
                sshd = test_rack.sshds[host.name]
                return sshd.up if report is None else greets(host.address, host.port) and sshd.says == report.token

            monkeypatch.setattr(iso, "make", write)
            monkeypatch.setattr(RedfishMachines, "_came_up", came_up)
            return test_rack

        yield build


def _boots(test_rack: Rack, name: str, image: str) -> None:
    """What a machine does: its installer looks at the serial number, installs, and starts the machine again."""
    if not image:
        return
    token = image.split("/")[3]
    target = next(image_target for image_target in test_rack.made if image_target.token == token)
    assert serial(test_rack.bmcs[name]) in target.serials, "an installer started on another machine"
    test_rack.installs.setdefault(name, []).append(token)
    test_rack.sshds[name].up, test_rack.sshds[name].says = True, token


@functools.cache
def fleet_plan(count: int = 4) -> Plan:
    return plan(cluster_spec("dgx-h100", count=count))


def up(rack: Rack, wait_s: float = 3.0, count: int = 4) -> None:
    site_machines = rack.machines(fleet_plan(count), wait_s)
    site_machines._folder.mkdir(parents=True, exist_ok=True)
    site_machines.apply(fleet_plan(count), site_machines.plan(fleet_plan(count)), always=True)


def untouched(rack: Rack) -> None:
    for name, bmc in rack.bmcs.items():
        if name not in rack.named:
            assert (bmc.asked, bmc.changes, bmc.system["PowerState"]) == (0, [], "Off")


def test_from_power_off_to_ssh(rack: Callable[..., Rack]) -> None:
    test_rack = rack(
        trees=("nvidia-dgx-h100", "dell-poweredge-r750-h100pcie", "hpe-apollo6500-xl675d-a100", "lenovo-sr670v2-l40")
    )
    up(test_rack)
    assert list(test_rack.installed().values()) == [1, 1, 1, 1, 0, 0]
    for name in test_rack.named:
        bmc = test_rack.bmcs[name]
        assert (bmc.inserted, bmc.sessions, bmc._boot()["BootSourceOverrideEnabled"]) == ([], {}, "Disabled")
    untouched(test_rack)
    assert not list(test_rack.folder.rglob("*/images/*.iso")), "images of machines that are installed are kept"
    change_counts = {name: len(bmc.changes) for name, bmc in test_rack.bmcs.items()}
    request_counts = {name: bmc.asked for name, bmc in test_rack.bmcs.items()}
    up(test_rack)
    assert change_counts == {name: len(bmc.changes) for name, bmc in test_rack.bmcs.items()}
    assert request_counts == {name: bmc.asked for name, bmc in test_rack.bmcs.items()}, (
        "a machine that is installed is left alone"
    )


FAULTS: dict[str, tuple[fake.Faulty, str]] = {
    "503": (fake.Faulty(busy=10_000), "Redfish service is not available now"),
    "drops its sessions": (fake.Faulty(drops_session=400), ""),
    "wrong password": (fake.Faulty(wrong_password=True), "does not accept the user and password"),
    "media never attaches": (fake.Faulty(never_attaches=True), "not showing the image as attached"),
    "never comes up": (fake.Faulty(never_boots=True), "did not come up: no ssh"),
}


def test_each_fault_is_named_and_the_others_are_served(rack: Callable[..., Rack]) -> None:
    test_rack = rack(named_count=6, neighbours=1, trees=("dell-poweredge-r750-h100pcie",))
    for name, (faults, _) in zip(test_rack.named, FAULTS.values(), strict=False):
        test_rack.bmcs[name].faults = copy.copy(faults)
    with pytest.raises(ProviderError, match="4 of 6 machines could not be installed") as caught:
        up(test_rack, wait_s=2.0, count=6)
    for name, (_, message) in zip(test_rack.named, FAULTS.values(), strict=False):
        line = next((error_line for error_line in str(caught.value).splitlines() if f"{name}:" in error_line), "")
        assert bool(line) == bool(message) and message in line, caught.value
    assert list(test_rack.installed().values()) == [0, 1, 0, 0, 0, 1, 0]
    assert all(not images for images in test_rack.inserted.values()), "an image was left attached"
    assert all(not bmc.sessions for bmc in test_rack.bmcs.values())
    untouched(test_rack)
    # Mended, the run goes on: those that were never started are installed, the one that did not come up is not
    for name in test_rack.named:
        test_rack.bmcs[name].faults = fake.Faulty()
    with pytest.raises(ProviderError, match=r"1 of 4 .*(\n.*)*its disks may be half written") as second_error:
        up(test_rack, count=6)
    assert "install.reinstall" in second_error.value.hint
    assert list(test_rack.installed().values()) == [1, 1, 1, 1, 0, 1, 0]
    test_rack.reinstall = (serial(test_rack.bmcs[test_rack.named[4]]),)
    up(test_rack, count=6)
    assert list(test_rack.installed().values()) == [1, 1, 1, 1, 1, 1, 0]
    up(test_rack, count=6)
    assert list(test_rack.installed().values()) == [1, 1, 1, 1, 1, 1, 0], "reinstall is said once for each installation"


def test_a_machine_that_runs_is_not_installed_over(rack: Callable[..., Rack]) -> None:
    test_rack = rack(named_count=2, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    first = test_rack.bmcs[test_rack.named[0]]
    first.system["PowerState"] = "On"
    with pytest.raises(ProviderError, match="what runs on it would be lost") as caught:
        up(test_rack, count=2)
    assert "GPU-0000" in caught.value.hint
    assert (first.changes, first.system["PowerState"]) == ([], "On")
    assert list(test_rack.installed().values()) == [0, 1]
    test_rack.reinstall = ("GPU-0001",)  # another machine's
    with pytest.raises(ProviderError, match="what runs on it would be lost"):
        up(test_rack, count=2)
    assert first.changes == []
    assert all(not target.reinstall for target in test_rack.made)
    test_rack.reinstall = ("gpu-0000",)
    up(test_rack, count=2)
    assert list(test_rack.installed().values()) == [1, 1]
    assert [target.reinstall for target in test_rack.made if "GPU-0000" in target.serials] == [True]


def test_a_run_that_has_lost_its_lease_starts_no_installation(rack: Callable[..., Rack]) -> None:
    test_rack = rack(named_count=2, neighbours=0)
    lost = LockedError("the lease is lost")
    process.stop_followed(lost)
    try:
        with pytest.raises(ProviderError, match="the lease is lost"):
            up(test_rack, count=2)
    finally:
        process.allow_followed(lost)
    assert list(test_rack.installed().values()) == [0, 0]
    up(test_rack, count=2)
    assert list(test_rack.installed().values()) == [1, 1]


def test_bmcs_that_are_swapped_touch_nobody(rack: Callable[..., Rack]) -> None:
    """The file says which serial number each host has: its BMC is another machine's."""
    test_rack = rack(named_count=2, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    first_bmc, two = (test_rack.bmcs[name] for name in test_rack.named)
    original = test_rack.listed
    hosts = [
        Host(**{**{f: getattr(host, f) for f in host.__slots__}, "serial": other})
        for host, other in zip(original(), ("GPU-0001", "GPU-0000"), strict=True)
    ]
    test_rack.listed = lambda groups=(): hosts  # type: ignore[method-assign, assignment]
    with pytest.raises(ProviderError, match="Nothing was changed"):
        up(test_rack, count=2)
    assert first_bmc.changes == two.changes == []


def test_a_machine_keeps_the_serial_number_that_it_had_first(rack: Callable[..., Rack]) -> None:
    test_rack = rack(named_count=1, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    test_rack.pinned = False
    bmc = test_rack.bmcs[test_rack.named[0]]
    bmc.faults.never_attaches = True
    with pytest.raises(ProviderError, match="not showing the image"):
        up(test_rack, count=1)
    bmc.faults.never_attaches = False
    bmc.system["SerialNumber"] = "OTHER"
    bmc.known["/redfish/v1/Chassis/System.Embedded.1"]["SerialNumber"] = "OTHER"
    previous_changes = list(bmc.changes)
    with pytest.raises(ProviderError, match="that of the machine OTHER, not of GPU-0000"):
        up(test_rack, count=1)
    assert bmc.changes == previous_changes and list(test_rack.installed().values()) == [0]


def test_another_machine_in_the_place_of_an_installed_one_is_installed(rack: Callable[..., Rack]) -> None:
    """Whoever replaces a chassis writes its serial number into cluster.yaml. Another name of the same machine is no
    other machine."""
    test_rack = rack(named_count=2, neighbours=1, trees=("dell-poweredge-r750-h100pcie",))
    up(test_rack, count=2)
    name, pins = (
        test_rack.named[0],
        ClusterPaths(test_rack.folder / "cluster.yaml", "lab", sandbox=False).ssh / "pins.json",
    )
    pins.parent.mkdir(parents=True, exist_ok=True)
    pins.write_text(json.dumps({"train-0": [name, "ssh-ed25519 A"], "train-1": [test_rack.named[1], "ssh-ed25519 B"]}))
    original = test_rack.listed
    called = [replace(host, serial=f"CH-{number:04d}") for number, host in enumerate(original())]
    test_rack.listed = lambda groups=(): called  # type: ignore[method-assign, assignment]
    known = test_rack.machines(fleet_plan(2))
    known._known = list(known._nodes(fleet_plan(2)).values())
    planned_changes = known.plan(fleet_plan(2))
    assert (planned_changes.total, {action.what for action in planned_changes.actions}) == (2, {"replace"}), (
        "nothing is installed unasked"
    )
    reasons = [action.reason for action in planned_changes.actions]
    assert reasons == [f"serial of {host.name} in cluster.yaml: {host.serial} → {new.serial}"
                       for host, new in zip(original(), called, strict=True)]  # fmt: skip
    up(test_rack, count=2)
    assert list(test_rack.installed().values()) == [1, 1, 0], "the serial number of its chassis"
    assert set(json.loads(pins.read_text())) == {"train-0", "train-1"}
    test_rack.listed = original  # type: ignore[method-assign]
    test_rack.bmcs[name].system.update(SerialNumber="NEW-1", PowerState="Off")
    test_rack.bmcs[name].known["/redfish/v1/Chassis/System.Embedded.1"]["SerialNumber"] = "NEW-CH"
    test_rack.sshds[name].up = False
    up(test_rack, count=2)
    assert list(test_rack.installed().values()) == [2, 1, 0]
    assert any("this name: serial CH-0000 → NEW-1" in sentence for sentence in test_rack.said)
    assert set(json.loads(pins.read_text())) == {"train-1"}, "it has made itself another host key"
    up(test_rack, count=2)
    assert list(test_rack.installed().values()) == [2, 1, 0]
    untouched(test_rack)


def test_a_machine_is_replaced_under_another_name_of_its_host(rack: Callable[..., Rack]) -> None:
    """`replace` tells the new machine from the old one by the host's name: under the same one it says what to do, and
    what it says works."""
    test_rack = rack(named_count=1, neighbours=1, trees=("dell-poweredge-r750-h100pcie",))
    up(test_rack, count=1)
    name = test_rack.named[0]
    site_machines = test_rack.machines(fleet_plan(1))
    site_machines._known = previous_nodes = list(site_machines._nodes(fleet_plan(1)).values())
    with pytest.raises(ProviderError, match="would take any machine for the one that it replaces") as caught:
        site_machines.plan(fleet_plan(1), replace=["train-0"])
    assert "add GPU-0000 to install.reinstall" in caught.value.hint
    renamed = [replace(host, name="anew.lab") for host in test_rack.listed()]
    test_rack.listed = lambda groups=(): renamed  # type: ignore[method-assign, assignment]
    test_rack.sshds["anew.lab"] = test_rack.sshds[name]
    test_rack.sshds[name].up = False
    test_rack.reinstall = ("GPU-0000",)
    renamed_machines = test_rack.machines(fleet_plan(1))
    renamed_machines._known, renamed_machines._access = (
        previous_nodes,
        replace(renamed_machines._access, users={"train-0": "ubuntu"}),
    )
    planned = renamed_machines.plan(fleet_plan(1), replace=["train-0"])
    planned.refuse_more(["train-0"], ["train-0"])
    assert [(action.what, action.attached) for action in planned.actions] == [("replace", False), ("delete", True)]
    assert [node.id for node in renamed_machines.apply(fleet_plan(1), planned)] == ["anew.lab"]
    assert list(test_rack.installed().values()) == [2, 0]
    untouched(test_rack)


def test_an_address_of_another_machine_is_not_taken_for_it(rack: Callable[..., Rack]) -> None:
    test_rack = rack(named_count=1, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    test_rack.sshds[test_rack.named[0]].up = True
    with pytest.raises(ProviderError, match="while the machine is off"):
        up(test_rack, count=1)
    assert list(test_rack.installed().values()) == [0] and test_rack.inserted == {test_rack.named[0]: []}


def test_an_override_that_would_start_the_installer_again_is_taken_back(rack: Callable[..., Rack]) -> None:
    """With the image: whoever switches the machine on next starts it from its own disk."""
    test_rack = rack(named_count=1, neighbours=1, trees=("hpe-apollo6500-xl675d-a100",))
    bmc = test_rack.bmcs[test_rack.named[0]]
    bmc.faults.forever = True
    with pytest.raises(ProviderError, match="shows Continuous Cd, not Once Cd"):
        up(test_rack, count=1)
    assert (bmc.inserted, bmc._boot()["BootSourceOverrideEnabled"], bmc.system["PowerState"]) == ([], "Disabled", "Off")
    assert list(test_rack.installed().values()) == [0, 0]
    untouched(test_rack)
    bmc.faults.forever = False
    up(test_rack, count=1)
    assert list(test_rack.installed().values()) == [1, 0]


def test_a_dell_starts_from_its_virtual_drive_once_the_image_is_at_the_machine(rack: Callable[..., Rack]) -> None:
    """`Cd` of an iDRAC is a physical drive, and what is attached reaches the machine a minute later."""
    test_rack = rack(named_count=1, neighbours=1, trees=("dell-poweredge-r750-h100pcie",))
    bmc = test_rack.bmcs[test_rack.named[0]]
    up(test_rack, count=1)
    assert list(test_rack.installed().values()) == [1, 0]
    written = [body["Attributes"] for _, _, body in bmc.changes if body and "Attributes" in body]
    assert written == [{"ServerBoot.1.BootOnce": "Enabled", "ServerBoot.1.FirstBootDevice": "VCD-DVD"}]
    assert (bmc.inserted, bmc.own["Attributes"]["ServerBoot.1.FirstBootDevice"]) == ([], "Normal")
    untouched(test_rack)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            fake.Faulty(no_virtual_cd=True),
            "does not take ServerBoot.1.BootOnce = Enabled, ServerBoot.1.FirstBootDevice = VCD-DVD",
        ),
        (fake.Faulty(never_at_the_host=True), "not giving the image to the machine"),
    ],
)
def test_a_dell_that_would_not_start_from_the_image_stays_off(
    rack: Callable[..., Rack], fault: fake.Faulty, message: str
) -> None:
    test_rack = rack(named_count=1, neighbours=1, trees=("dell-poweredge-r750-h100pcie",))
    bmc = test_rack.bmcs[test_rack.named[0]]
    bmc.faults = fault
    with pytest.raises(ProviderError, match=message):
        up(test_rack, count=1)
    assert (bmc.inserted, bmc.system["PowerState"]) == ([], "Off"), "nothing is attached, and it was not switched on"
    assert bmc.own["Attributes"]["ServerBoot.1.FirstBootDevice"] == "Normal"
    bmc.faults = fake.Faulty()
    up(test_rack, count=1)
    assert list(test_rack.installed().values()) == [1, 0], "the next run installs it"


@pytest.mark.parametrize(
    ("model", "firmware", "refused"),
    [
        ("13G Monolithic", "2.82.82.82", "no firmware of it is known to"),
        ("14G Monolithic", "3.34.34.34", "it needs firmware 4.40 or newer"),
        ("15G Monolithic", "6.00.30.00", ""),
        ("17G Monolithic", "1.20.50.52", ""),
        ("", "", "unknown model"),
    ],
)
def test_a_dell_without_those_attributes_is_refused_before_anything_is_changed_unless_its_cd_is_virtual(
    rack: Callable[..., Rack], model: str, firmware: str, refused: str
) -> None:
    test_rack = rack(named_count=1, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    bmc = test_rack.bmcs[test_rack.named[0]]
    bmc.own["Attributes"].clear()
    bmc.known["/redfish/v1/Managers/iDRAC.Embedded.1"].update(Model=model, FirmwareVersion=firmware)
    if not refused:
        up(test_rack, count=1)
        assert list(test_rack.installed().values()) == [1]
        return
    with pytest.raises(ProviderError, match=refused):
        up(test_rack, count=1)
    assert bmc.changes == []


def test_a_dell_whose_attributes_cannot_be_read_just_now_is_not_started_by_the_standards_cd(
    rack: Callable[..., Rack],
) -> None:
    test_rack = rack(named_count=1, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    bmc = test_rack.bmcs[test_rack.named[0]]
    bmc.known["/redfish/v1/Managers/iDRAC.Embedded.1"].update(Model="15G Monolithic", FirmwareVersion="6.00.30.00")
    bmc.faults = fake.Faulty(no_attributes=True)
    with pytest.raises(ProviderError, match="cannot be read"):
        up(test_rack, count=1)
    assert (bmc.changes, bmc.system["PowerState"]) == ([], "Off")
    bmc.faults = fake.Faulty()
    up(test_rack, count=1)
    assert list(test_rack.installed().values()) == [1]


def test_a_dell_with_another_image_in_another_drive_is_not_started(rack: Callable[..., Rack]) -> None:
    """Its next start is from a virtual drive, and nobody says from which."""
    test_rack = rack(named_count=1, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    bmc = test_rack.bmcs[test_rack.named[0]]
    drive = next(
        resource for uri, resource in bmc.known.items() if "/VirtualMedia/" in uri and resource.get("Id") == "1"
    )
    drive.update(Inserted=True, ConnectedVia="URI", Image="http://192.0.2.1/wipe.iso")
    with pytest.raises(ProviderError, match="another virtual drive has an image"):
        up(test_rack, count=1)
    assert (bmc.inserted, bmc.system["PowerState"]) == (["http://192.0.2.1/wipe.iso"], "Off")
    drive.update(Inserted=False, ConnectedVia="NotConnected", Image=None)
    up(test_rack, count=1)
    assert list(test_rack.installed().values()) == [1]


@pytest.mark.parametrize("value", [None, 1, ["VCD-DVD"], {"a": "b"}])
def test_attributes_of_another_type_are_no_override(rack: Callable[..., Rack], value: object) -> None:
    test_rack = rack(named_count=1, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    bmc = test_rack.bmcs[test_rack.named[0]]
    bmc.own["Attributes"].update({"ServerBoot.1.BootOnce": value, "ServerBoot.1.FirstBootDevice": value})
    up(test_rack, count=1)
    assert list(test_rack.installed().values()) == [1]


def test_a_missing_licence_is_said_before_anything_is_changed(rack: Callable[..., Rack]) -> None:
    test_rack = rack(named_count=1, neighbours=0, trees=("hpe-apollo6500-xl675d-a100",))
    bmc = test_rack.bmcs[test_rack.named[0]]
    for resource in bmc.known.values():
        if "LicenseFeatures" in resource:
            resource.update(License="iLO Standard", LicenseFeatures={"VM": False})
    with pytest.raises(
        ProviderError, match=r"lacks the licence for virtual media \(iLO Advanced\); it has iLO Standard"
    ):
        up(test_rack, count=1)
    assert bmc.changes == []


@pytest.mark.parametrize(
    ("enable", "mode", "refused"),
    [(True, "UserMode", True), (False, "UserMode", False), (True, "SetupMode", False), (None, "UserMode", False)],
)
def test_a_disk_without_a_signature_is_refused_where_secure_boot_is_on(
    rack: Callable[..., Rack], monkeypatch: pytest.MonkeyPatch, enable: bool | None, mode: str, refused: bool
) -> None:
    test_rack = rack(named_count=1, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    bmc = test_rack.bmcs[test_rack.named[0]]
    bmc.known["/redfish/v1/Systems/System.Embedded.1/SecureBoot"].update(SecureBootEnable=enable, SecureBootMode=mode)
    real = installing.Installer.__init__
    monkeypatch.setattr(installing.Installer, "__init__", lambda *a, **k: real(*a, **{**k, "unsigned": True}))
    if not refused:
        up(test_rack, count=1)
        assert list(test_rack.installed().values()) == [1]
        return
    with pytest.raises(ProviderError, match="Secure Boot is on") as caught:
        up(test_rack, count=1)
    assert (bmc.changes, "SecureBootEnable" in caught.value.hint) == ([], True)
    monkeypatch.setattr(installing.Installer, "__init__", real)
    up(test_rack, count=1)  # the distribution's installer is signed
    assert list(test_rack.installed().values()) == [1]


class Killed(BaseException):
    """As SIGKILL: nothing is put in order."""


def test_killed_at_any_change_and_run_again(rack: Callable[..., Rack], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first and after every change that a BMC is sent, and every line of the journal: after one and before
    the next, a run leaves the same."""
    events = _events(rack, monkeypatch)
    assert len(events) > 15
    for point in [point for point, event in enumerate(events) if point == 0 or event.startswith("after ")]:
        test_rack = rack(named_count=1, neighbours=1, trees=("dell-poweredge-r750-h100pcie",))
        file = test_rack.folder / ".gpuprov"
        with contextlib.suppress(FileNotFoundError):
            __import__("shutil").rmtree(file)
        with _killing(test_rack, monkeypatch, point), contextlib.suppress(Killed, ProviderError):
            up(test_rack, count=1)
        for _ in range(2):
            test_rack.bmcs[test_rack.named[0]].sessions.clear()
            up(test_rack, count=1)
        assert list(test_rack.installed().values()) == [1, 0], f"killed at {point}"
        assert test_rack.inserted == {name: [] for name in test_rack.bmcs}, f"killed at {point}"
        assert test_rack.bmcs[test_rack.named[0]]._boot()["BootSourceOverrideEnabled"] == "Disabled"
        assert test_rack.bmcs[test_rack.named[0]].own["Attributes"]["ServerBoot.1.FirstBootDevice"] == "Normal"
        untouched(test_rack)


def _events(rack: Callable[..., Rack], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    test_rack = rack(named_count=1, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    with _killing(test_rack, monkeypatch, -1) as passed:
        up(test_rack, count=1)
    return passed


@contextlib.contextmanager
def _killing(test_rack: Rack, monkeypatch: pytest.MonkeyPatch, point: int) -> Iterator[list[str]]:
    """Ends the run at its n-th point; afterwards nothing that the run does reaches a BMC or a file."""
    passed: list[str] = []
    dead = threading.Event()

    def pass_by(event: str) -> None:
        if dead.is_set():
            raise Killed
        passed.append(event)
        if len(passed) - 1 == point:
            dead.set()
            raise Killed

    def around(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            pass_by(f"before {name}")
            result = original(*args, **more)
            pass_by(f"after {name}")
            return result

        return call

    with monkeypatch.context() as patch:
        from provisioner.machines import journal
        from provisioner.machines.redfish.client import Bmc

        patch.setattr(Bmc, "post", around("POST", Bmc.post))
        patch.setattr(Bmc, "patch", around("PATCH", Bmc.patch))
        patch.setattr(journal, "write_whole", around("note", journal.write_whole))
        original = redfish.each

        def each(machines: Any, work: Callable[[str], Any], *arguments: Any) -> Iterator[Any]:
            def safe(name: str) -> Any:
                try:
                    return work(name)
                except Killed as error:
                    raise ProviderError("killed") from error

            return original(machines, safe, *arguments)

        patch.setattr(redfish, "each", each)
        yield passed


def test_the_journal_is_whole_or_says_so(tmp_path: Path) -> None:
    from provisioner.common.errors import GpuprovError
    from provisioner.machines.journal import Installation as Row
    from provisioner.machines.journal import Journal

    journal = Journal(tmp_path / "bmc.json")
    journal.note(Row("a", "S1"), "starting", url="https://x/1")
    assert journal.load()["a"].step == "starting"
    for text in (
        "",
        "[]",
        "[" * 5000,
        '{"hosts": {"a": {}}}',
        json.dumps({"hosts": {"a": {"serial": "S", "step": "x", "token": "", "url": "", "order": []}}}),
    ):
        journal.file.write_text(text)
        with pytest.raises(GpuprovError, match="is damaged"):
            journal.load()


def test_interrupted_leaves_no_session(rack: Callable[..., Rack], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a conversation: the run's main thread gets it, and the others sign out."""
    test_rack = rack(named_count=1, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    bmc = test_rack.bmcs[test_rack.named[0]]
    bmc.faults.slow_s = 0.1

    class Interrupted(queue.Queue):  # type: ignore[type-arg]
        def get(self, *_: Any, **more: Any) -> Any:
            end = time.monotonic() + 10
            while not bmc.sessions and time.monotonic() < end:
                time.sleep(0.02)
            raise KeyboardInterrupt

    monkeypatch.setattr(queue, "Queue", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        up(test_rack, wait_s=30, count=1)
    assert bmc.opened == 1 and bmc.sessions == {}


def test_what_an_installer_reports_is_heard(rack: Callable[..., Rack], monkeypatch: pytest.MonkeyPatch) -> None:
    """One refuses, and is given up at once; the other has made itself a host key, which is pinned."""
    test_rack = rack(named_count=2, neighbours=0)
    serving, served = serve.serving, dict[str, serve.Images]()

    @contextlib.contextmanager
    def serve_images(*arguments: Any, **more: Any) -> Iterator[serve.Images]:
        with serving(*arguments, **more) as served["images"]:
            yield served["images"]

    monkeypatch.setattr(serve, "serving", serve_images)
    refuses, ends = test_rack.named

    def reports(name: str, image: str) -> None:
        report = Report("data") if name == refuses else Report(host_key=KEY)
        served["images"].reports[image.split("/")[3]] = report
        if name == ends:
            _boots(test_rack, name, image)

    for name in test_rack.named:
        test_rack.bmcs[name].booted = lambda _, image, name=name: reports(name, image)  # type: ignore[misc]
    with pytest.raises(ProviderError, match="1 of 2 machines could not be installed") as caught:
        up(test_rack, wait_s=60.0, count=2)
    assert f"{refuses}: the installer switched the machine off: nothing was written: a disk of it holds" in str(
        caught.value
    )
    paths = test_rack.machines(fleet_plan(2))._access.paths
    assert list(ssh_pins.load_pins(paths).values()) == [(ends, KEY)]
    steps = Journal(paths.site("here") / "bmc.json").load()
    assert [(installation.step, installation.host_key) for installation in steps.values()] == [
        ("failed", ""),
        ("installed", KEY),
    ]


def test_a_run_that_was_killed_serves_the_same_installer_again(rack: Callable[..., Rack]) -> None:
    """The machine goes on reading where it did, by the same certificate; what it has reported counts."""
    test_rack = rack(named_count=2, neighbours=0)
    site_machines = test_rack.machines(fleet_plan(2))
    folder = private_dir(site_machines._folder / "images")
    hosts, tokens = test_rack.listed(), ("ab" * 16, "cd" * 16)
    with site_machines._serving(hosts[0]) as first:
        for host, token, key in zip(hosts, tokens, ("", KEY), strict=True):
            (folder / f"{token}.iso").write_bytes(b"x")
            installation = Installation(host.name, host.serial, token=token, host_key=key)
            site_machines._journal.note(installation, "installing", url=first.url(token))
    with site_machines._serving(hosts[0]) as second:
        assert (second.port, second.certificate) == (first.port, first.certificate)
        assert set(second.files) == set(tokens) and second.reports == {tokens[1]: Report(host_key=KEY)}
