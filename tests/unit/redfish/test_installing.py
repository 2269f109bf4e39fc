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

from provisioner import process, ssh
from provisioner.errors import LockedError, ProviderError
from provisioner.events import Events
from provisioner.installer import iso, serve
from provisioner.installer.report import Report
from provisioner.installer.seed import Target
from provisioner.machines import installing, redfish
from provisioner.machines.came_up import greets
from provisioner.machines.existing import Way
from provisioner.machines.journal import Installation, Journal
from provisioner.machines.redfish import RedfishMachines
from provisioner.paths import ClusterPaths, private_dir
from provisioner.plan import Plan
from provisioner.providers import base
from provisioner.providers.hosts import Host
from tests.support import bmc as fake
from tests.support.plans import cluster_spec, plan

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
        way = Way(paths, {}, {}, lambda: KEY, lambda: "1234", frozenset())
        events = Events()
        events.subscribe(lambda event: self.said.append(f"{event.node}: {event.message}"))
        return RedfishMachines(
            "here", self, self, installation, [], way, events, wait_s, self.folder, "ubuntu", lambda _: None
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
    monkeypatch.setattr("provisioner.redfish.machine.POLL_S", 0.02)
    monkeypatch.setattr("provisioner.redfish.machine.MEDIA_S", 1.0)
    monkeypatch.setattr("provisioner.redfish.machine.HOST_MEDIA_S", 1.0)
    with contextlib.ExitStack() as running:

        def build(named: int = 4, neighbours: int = 2, trees: tuple[str, ...] = (TREE,)) -> Rack:
            made = Rack(tmp_path, {}, {}, [])
            for number in range(named + neighbours):
                name = f"dgx{number:02d}.lab"
                tree = trees[number % len(trees)]
                known = copy.deepcopy(fake.tree(tree))
                bmc = fake.Bmc(known, fake.MANNERS[tree])
                bmc.system.update(SerialNumber=f"GPU-{number:04d}", PowerState="Off")
                for one in known.values():
                    if str(one.get("@odata.type")).startswith("#Chassis.v"):
                        one["SerialNumber"] = f"CH-{number:04d}"
                made.bmcs[name] = running.enter_context(fake.serving(bmc, pem))
                made.sshds[name] = Sshd()
                bmc.booted = lambda _, image, name=name: _boots(made, name, image)  # type: ignore[misc]
                if number < named:
                    made.named.append(name)

            def write(distribution: str, installer: Path, target: Target, out: Path) -> Path:
                made.made.append(target)
                out.write_bytes(b"\0" * 32768 + b"\x01CD001\x01" + target.token.encode())
                return out

            def came_up(self: RedfishMachines, host: Host, now: Any) -> bool:
                sshd = made.sshds[host.name]
                return sshd.up if now is None else greets(host.address, host.port) and sshd.says == now.token

            monkeypatch.setattr(iso, "make", write)
            monkeypatch.setattr(RedfishMachines, "_came_up", came_up)
            return made

        yield build


def _boots(made: Rack, name: str, image: str) -> None:
    """What a machine does: its installer looks at the serial number, installs, and starts the machine again."""
    if not image:
        return
    token = image.split("/")[3]
    target = next(one for one in made.made if one.token == token)
    assert serial(made.bmcs[name]) in target.serials, "an installer started on another machine"
    made.installs.setdefault(name, []).append(token)
    made.sshds[name].up, made.sshds[name].says = True, token


@functools.cache
def wanted(count: int = 4) -> Plan:
    return plan(cluster_spec("dgx-h100", count=count))


def up(rack: Rack, wait_s: float = 3.0, count: int = 4) -> None:
    there = rack.machines(wanted(count), wait_s)
    there._folder.mkdir(parents=True, exist_ok=True)
    there.apply(wanted(count), there.plan(wanted(count)), always=True)


def untouched(rack: Rack) -> None:
    for name, bmc in rack.bmcs.items():
        if name not in rack.named:
            assert (bmc.asked, bmc.changes, bmc.system["PowerState"]) == (0, [], "Off")


def test_from_power_off_to_ssh(rack: Callable[..., Rack]) -> None:
    mine = rack(
        trees=("nvidia-dgx-h100", "dell-poweredge-r750-h100pcie", "hpe-apollo6500-xl675d-a100", "lenovo-sr670v2-l40")
    )
    up(mine)
    assert list(mine.installed().values()) == [1, 1, 1, 1, 0, 0]
    for name in mine.named:
        bmc = mine.bmcs[name]
        assert (bmc.inserted, bmc.sessions, bmc._boot()["BootSourceOverrideEnabled"]) == ([], {}, "Disabled")
    untouched(mine)
    assert not list(mine.folder.rglob("*/images/*.iso")), "images of machines that are installed are kept"
    before = {name: len(bmc.changes) for name, bmc in mine.bmcs.items()}
    asked = {name: bmc.asked for name, bmc in mine.bmcs.items()}
    up(mine)
    assert before == {name: len(bmc.changes) for name, bmc in mine.bmcs.items()}
    assert asked == {name: bmc.asked for name, bmc in mine.bmcs.items()}, "a machine that is installed is left alone"


FAULTS: dict[str, tuple[fake.Faulty, str]] = {
    "503": (fake.Faulty(busy=10_000), "Redfish service is not available now"),
    "drops its sessions": (fake.Faulty(drops_session=400), ""),
    "wrong password": (fake.Faulty(wrong_password=True), "does not accept the user and password"),
    "media never attaches": (fake.Faulty(never_attaches=True), "not showing the image as attached"),
    "never comes up": (fake.Faulty(never_boots=True), "did not come up: no ssh"),
}


def test_each_fault_is_named_and_the_others_are_served(rack: Callable[..., Rack]) -> None:
    mine = rack(named=6, neighbours=1, trees=("dell-poweredge-r750-h100pcie",))
    for name, (faults, _) in zip(mine.named, FAULTS.values(), strict=False):
        mine.bmcs[name].faults = copy.copy(faults)
    with pytest.raises(ProviderError, match="4 of 6 machines could not be installed") as told:
        up(mine, wait_s=2.0, count=6)
    for name, (_, said) in zip(mine.named, FAULTS.values(), strict=False):
        line = next((one for one in str(told.value).splitlines() if f"{name}:" in one), "")
        assert bool(line) == bool(said) and said in line, told.value
    assert list(mine.installed().values()) == [0, 1, 0, 0, 0, 1, 0]
    assert all(not images for images in mine.inserted.values()), "an image was left attached"
    assert all(not bmc.sessions for bmc in mine.bmcs.values())
    untouched(mine)
    # Mended, the run goes on: those that were never started are installed, the one that did not come up is not
    for name in mine.named:
        mine.bmcs[name].faults = fake.Faulty()
    with pytest.raises(ProviderError, match=r"1 of 4 .*(\n.*)*its disks may be half written") as again:
        up(mine, count=6)
    assert "install.reinstall" in again.value.hint
    assert list(mine.installed().values()) == [1, 1, 1, 1, 0, 1, 0]
    mine.reinstall = (serial(mine.bmcs[mine.named[4]]),)
    up(mine, count=6)
    assert list(mine.installed().values()) == [1, 1, 1, 1, 1, 1, 0]
    up(mine, count=6)
    assert list(mine.installed().values()) == [1, 1, 1, 1, 1, 1, 0], "reinstall is said once for each installation"


def test_a_machine_that_runs_is_not_installed_over(rack: Callable[..., Rack]) -> None:
    mine = rack(named=2, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    first = mine.bmcs[mine.named[0]]
    first.system["PowerState"] = "On"
    with pytest.raises(ProviderError, match="what runs on it would be lost") as told:
        up(mine, count=2)
    assert "GPU-0000" in told.value.hint
    assert (first.changes, first.system["PowerState"]) == ([], "On")
    assert list(mine.installed().values()) == [0, 1]
    mine.reinstall = ("GPU-0001",)  # another machine's
    with pytest.raises(ProviderError, match="what runs on it would be lost"):
        up(mine, count=2)
    assert first.changes == []
    assert all(not one.reinstall for one in mine.made)
    mine.reinstall = ("gpu-0000",)
    up(mine, count=2)
    assert list(mine.installed().values()) == [1, 1]
    assert [one.reinstall for one in mine.made if "GPU-0000" in one.serials] == [True]


def test_a_run_that_has_lost_its_lease_starts_no_installation(rack: Callable[..., Rack]) -> None:
    mine = rack(named=2, neighbours=0)
    lost = LockedError("the lease is lost")
    process.stop_followed(lost)
    try:
        with pytest.raises(ProviderError, match="the lease is lost"):
            up(mine, count=2)
    finally:
        process.allow_followed(lost)
    assert list(mine.installed().values()) == [0, 0]
    up(mine, count=2)
    assert list(mine.installed().values()) == [1, 1]


def test_bmcs_that_are_swapped_touch_nobody(rack: Callable[..., Rack]) -> None:
    """The file says which serial number each host has: its BMC is another machine's."""
    mine = rack(named=2, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    one, two = (mine.bmcs[name] for name in mine.named)
    original = mine.listed
    hosts = [
        Host(**{**{f: getattr(host, f) for f in host.__slots__}, "serial": other})
        for host, other in zip(original(), ("GPU-0001", "GPU-0000"), strict=True)
    ]
    mine.listed = lambda groups=(): hosts  # type: ignore[method-assign, assignment]
    with pytest.raises(ProviderError, match="Nothing was changed"):
        up(mine, count=2)
    assert one.changes == two.changes == []


def test_a_machine_keeps_the_serial_number_that_it_had_first(rack: Callable[..., Rack]) -> None:
    mine = rack(named=1, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    mine.pinned = False
    bmc = mine.bmcs[mine.named[0]]
    bmc.faults.never_attaches = True
    with pytest.raises(ProviderError, match="not showing the image"):
        up(mine, count=1)
    bmc.faults.never_attaches = False
    bmc.system["SerialNumber"] = "OTHER"
    bmc.known["/redfish/v1/Chassis/System.Embedded.1"]["SerialNumber"] = "OTHER"
    before = list(bmc.changes)
    with pytest.raises(ProviderError, match="that of the machine OTHER, not of GPU-0000"):
        up(mine, count=1)
    assert bmc.changes == before and list(mine.installed().values()) == [0]


def test_another_machine_in_the_place_of_an_installed_one_is_installed(rack: Callable[..., Rack]) -> None:
    """Whoever replaces a chassis writes its serial number into cluster.yaml. Another name of the same machine is no
    other machine."""
    mine = rack(named=2, neighbours=1, trees=("dell-poweredge-r750-h100pcie",))
    up(mine, count=2)
    name, pins = mine.named[0], ClusterPaths(mine.folder / "cluster.yaml", "lab", sandbox=False).ssh / "pins.json"
    pins.parent.mkdir(parents=True, exist_ok=True)
    pins.write_text(json.dumps({"train-0": [name, "ssh-ed25519 A"], "train-1": [mine.named[1], "ssh-ed25519 B"]}))
    original = mine.listed
    called = [replace(host, serial=f"CH-{number:04d}") for number, host in enumerate(original())]
    mine.listed = lambda groups=(): called  # type: ignore[method-assign, assignment]
    known = mine.machines(wanted(2))
    known._known = list(known._nodes(wanted(2)).values())
    asked = known.plan(wanted(2))
    assert (asked.total, {one.what for one in asked.actions}) == (2, {"replace"}), "nothing is installed unasked"
    up(mine, count=2)
    assert list(mine.installed().values()) == [1, 1, 0], "the serial number of its chassis"
    assert set(json.loads(pins.read_text())) == {"train-0", "train-1"}
    mine.listed = original  # type: ignore[method-assign]
    mine.bmcs[name].system.update(SerialNumber="NEW-1", PowerState="Off")
    mine.bmcs[name].known["/redfish/v1/Chassis/System.Embedded.1"]["SerialNumber"] = "NEW-CH"
    mine.sshds[name].up = False
    up(mine, count=2)
    assert list(mine.installed().values()) == [2, 1, 0]
    assert set(json.loads(pins.read_text())) == {"train-1"}, "it has made itself another host key"
    up(mine, count=2)
    assert list(mine.installed().values()) == [2, 1, 0]
    untouched(mine)


def test_a_machine_is_replaced_under_another_name_of_its_host(rack: Callable[..., Rack]) -> None:
    """`replace` tells the new machine from the old one by the host's name: under the same one it says what to do, and
    what it says works."""
    mine = rack(named=1, neighbours=1, trees=("dell-poweredge-r750-h100pcie",))
    up(mine, count=1)
    name = mine.named[0]
    there = mine.machines(wanted(1))
    there._known = before = list(there._nodes(wanted(1)).values())
    with pytest.raises(ProviderError, match="would take any machine for the one that it replaces") as told:
        there.plan(wanted(1), replace=["train-0"])
    assert "add GPU-0000 to install.reinstall" in told.value.hint
    renamed = [replace(host, name="anew.lab") for host in mine.listed()]
    mine.listed = lambda groups=(): renamed  # type: ignore[method-assign, assignment]
    mine.sshds["anew.lab"] = mine.sshds[name]
    mine.sshds[name].up = False
    mine.reinstall = ("GPU-0000",)
    again = mine.machines(wanted(1))
    again._known, again._way = before, replace(again._way, users={"train-0": "ubuntu"})
    planned = again.plan(wanted(1), replace=["train-0"])
    planned.refuse_more(["train-0"], ["train-0"])
    assert [(one.what, one.attached) for one in planned.actions] == [("replace", False), ("delete", True)]
    assert [node.id for node in again.apply(wanted(1), planned)] == ["anew.lab"]
    assert list(mine.installed().values()) == [2, 0]
    untouched(mine)


def test_an_address_of_another_machine_is_not_taken_for_it(rack: Callable[..., Rack]) -> None:
    mine = rack(named=1, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    mine.sshds[mine.named[0]].up = True
    with pytest.raises(ProviderError, match="while the machine is off"):
        up(mine, count=1)
    assert list(mine.installed().values()) == [0] and mine.inserted == {mine.named[0]: []}


def test_an_override_that_would_start_the_installer_again_is_taken_back(rack: Callable[..., Rack]) -> None:
    """With the image: whoever switches the machine on next starts it from its own disk."""
    mine = rack(named=1, neighbours=1, trees=("hpe-apollo6500-xl675d-a100",))
    bmc = mine.bmcs[mine.named[0]]
    bmc.faults.forever = True
    with pytest.raises(ProviderError, match="shows Continuous Cd, not Once Cd"):
        up(mine, count=1)
    assert (bmc.inserted, bmc._boot()["BootSourceOverrideEnabled"], bmc.system["PowerState"]) == ([], "Disabled", "Off")
    assert list(mine.installed().values()) == [0, 0]
    untouched(mine)
    bmc.faults.forever = False
    up(mine, count=1)
    assert list(mine.installed().values()) == [1, 0]


def test_a_dell_starts_from_its_virtual_drive_once_the_image_is_at_the_machine(rack: Callable[..., Rack]) -> None:
    """`Cd` of an iDRAC is a physical drive, and what is attached reaches the machine a minute later."""
    mine = rack(named=1, neighbours=1, trees=("dell-poweredge-r750-h100pcie",))
    bmc = mine.bmcs[mine.named[0]]
    up(mine, count=1)
    assert list(mine.installed().values()) == [1, 0]
    written = [body["Attributes"] for _, _, body in bmc.changes if body and "Attributes" in body]
    assert written == [{"ServerBoot.1.BootOnce": "Enabled", "ServerBoot.1.FirstBootDevice": "VCD-DVD"}]
    assert (bmc.inserted, bmc.own["Attributes"]["ServerBoot.1.FirstBootDevice"]) == ([], "Normal")
    untouched(mine)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            fake.Faulty(no_virtual_cd=True),
            "does not take ServerBoot.1.BootOnce = Enabled, ServerBoot.1.FirstBootDevice = VCD-DVD",
        ),
        (fake.Faulty(never_at_the_host=True), "not giving the image to the machine"),
    ],
)
def test_a_dell_that_would_not_start_from_the_image_stays_off(
    rack: Callable[..., Rack], fault: fake.Faulty, said: str
) -> None:
    mine = rack(named=1, neighbours=1, trees=("dell-poweredge-r750-h100pcie",))
    bmc = mine.bmcs[mine.named[0]]
    bmc.faults = fault
    with pytest.raises(ProviderError, match=said):
        up(mine, count=1)
    assert (bmc.inserted, bmc.system["PowerState"]) == ([], "Off"), "nothing is attached, and it was not switched on"
    assert bmc.own["Attributes"]["ServerBoot.1.FirstBootDevice"] == "Normal"
    bmc.faults = fake.Faulty()
    up(mine, count=1)
    assert list(mine.installed().values()) == [1, 0], "the next run installs it"


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
    mine = rack(named=1, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    bmc = mine.bmcs[mine.named[0]]
    bmc.own["Attributes"].clear()
    bmc.known["/redfish/v1/Managers/iDRAC.Embedded.1"].update(Model=model, FirmwareVersion=firmware)
    if not refused:
        up(mine, count=1)
        assert list(mine.installed().values()) == [1]
        return
    with pytest.raises(ProviderError, match=refused):
        up(mine, count=1)
    assert bmc.changes == []


def test_a_dell_whose_attributes_cannot_be_read_just_now_is_not_started_by_the_standards_cd(
    rack: Callable[..., Rack],
) -> None:
    mine = rack(named=1, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    bmc = mine.bmcs[mine.named[0]]
    bmc.known["/redfish/v1/Managers/iDRAC.Embedded.1"].update(Model="15G Monolithic", FirmwareVersion="6.00.30.00")
    bmc.faults = fake.Faulty(no_attributes=True)
    with pytest.raises(ProviderError, match="can't be read"):
        up(mine, count=1)
    assert (bmc.changes, bmc.system["PowerState"]) == ([], "Off")
    bmc.faults = fake.Faulty()
    up(mine, count=1)
    assert list(mine.installed().values()) == [1]


def test_a_dell_with_another_image_in_another_drive_is_not_started(rack: Callable[..., Rack]) -> None:
    """Its next start is from a virtual drive, and nobody says from which."""
    mine = rack(named=1, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    bmc = mine.bmcs[mine.named[0]]
    drive = next(one for uri, one in bmc.known.items() if "/VirtualMedia/" in uri and one.get("Id") == "1")
    drive.update(Inserted=True, ConnectedVia="URI", Image="http://192.0.2.1/wipe.iso")
    with pytest.raises(ProviderError, match="another virtual drive has an image"):
        up(mine, count=1)
    assert (bmc.inserted, bmc.system["PowerState"]) == (["http://192.0.2.1/wipe.iso"], "Off")
    drive.update(Inserted=False, ConnectedVia="NotConnected", Image=None)
    up(mine, count=1)
    assert list(mine.installed().values()) == [1]


@pytest.mark.parametrize("value", [None, 1, ["VCD-DVD"], {"a": "b"}])
def test_attributes_of_another_type_are_no_override(rack: Callable[..., Rack], value: object) -> None:
    mine = rack(named=1, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    bmc = mine.bmcs[mine.named[0]]
    bmc.own["Attributes"].update({"ServerBoot.1.BootOnce": value, "ServerBoot.1.FirstBootDevice": value})
    up(mine, count=1)
    assert list(mine.installed().values()) == [1]


def test_a_missing_licence_is_said_before_anything_is_changed(rack: Callable[..., Rack]) -> None:
    mine = rack(named=1, neighbours=0, trees=("hpe-apollo6500-xl675d-a100",))
    bmc = mine.bmcs[mine.named[0]]
    for one in bmc.known.values():
        if "LicenseFeatures" in one:
            one.update(License="iLO Standard", LicenseFeatures={"VM": False})
    with pytest.raises(
        ProviderError, match=r"lacks the licence for virtual media \(iLO Advanced\); it has iLO Standard"
    ):
        up(mine, count=1)
    assert bmc.changes == []


@pytest.mark.parametrize(
    ("enable", "mode", "refused"),
    [(True, "UserMode", True), (False, "UserMode", False), (True, "SetupMode", False), (None, "UserMode", False)],
)
def test_a_disk_without_a_signature_is_refused_where_secure_boot_is_on(
    rack: Callable[..., Rack], monkeypatch: pytest.MonkeyPatch, enable: bool | None, mode: str, refused: bool
) -> None:
    mine = rack(named=1, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    bmc = mine.bmcs[mine.named[0]]
    bmc.known["/redfish/v1/Systems/System.Embedded.1/SecureBoot"].update(SecureBootEnable=enable, SecureBootMode=mode)
    real = installing.Installer.__init__
    monkeypatch.setattr(installing.Installer, "__init__", lambda *a, **k: real(*a, **{**k, "unsigned": True}))
    if not refused:
        up(mine, count=1)
        assert list(mine.installed().values()) == [1]
        return
    with pytest.raises(ProviderError, match="Secure Boot is on") as told:
        up(mine, count=1)
    assert (bmc.changes, "SecureBootEnable" in told.value.hint) == ([], True)
    monkeypatch.setattr(installing.Installer, "__init__", real)
    up(mine, count=1)  # the distribution's installer is signed
    assert list(mine.installed().values()) == [1]


class Killed(BaseException):
    """As SIGKILL: nothing is put in order."""


def test_killed_at_any_change_and_run_again(rack: Callable[..., Rack], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after every change that a BMC is sent, and every line of the journal."""
    points = _points(rack, monkeypatch)
    assert points > 15
    for point in range(points):
        mine = rack(named=1, neighbours=1, trees=("dell-poweredge-r750-h100pcie",))
        file = mine.folder / ".gpuprov"
        with contextlib.suppress(FileNotFoundError):
            __import__("shutil").rmtree(file)
        with _killing(mine, monkeypatch, point), contextlib.suppress(Killed, ProviderError):
            up(mine, count=1)
        for _ in range(2):
            mine.bmcs[mine.named[0]].sessions.clear()
            up(mine, count=1)
        assert list(mine.installed().values()) == [1, 0], f"killed at {point}"
        assert mine.inserted == {name: [] for name in mine.bmcs}, f"killed at {point}"
        assert mine.bmcs[mine.named[0]]._boot()["BootSourceOverrideEnabled"] == "Disabled"
        assert mine.bmcs[mine.named[0]].own["Attributes"]["ServerBoot.1.FirstBootDevice"] == "Normal"
        untouched(mine)


def _points(rack: Callable[..., Rack], monkeypatch: pytest.MonkeyPatch) -> int:
    mine = rack(named=1, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    with _killing(mine, monkeypatch, -1) as passed:
        up(mine, count=1)
    return len(passed)


@contextlib.contextmanager
def _killing(mine: Rack, monkeypatch: pytest.MonkeyPatch, point: int) -> Iterator[list[str]]:
    """Ends the run at its n-th point; afterwards nothing that the run does reaches a BMC or a file."""
    passed: list[str] = []
    dead = threading.Event()

    def pass_by(what: str) -> None:
        if dead.is_set():
            raise Killed
        passed.append(what)
        if len(passed) - 1 == point:
            dead.set()
            raise Killed

    def around(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            pass_by(f"before {name}")
            found = original(*args, **more)
            pass_by(f"after {name}")
            return found

        return call

    with monkeypatch.context() as patch:
        from provisioner.machines import journal
        from provisioner.redfish.client import Bmc

        patch.setattr(Bmc, "post", around("POST", Bmc.post))
        patch.setattr(Bmc, "patch", around("PATCH", Bmc.patch))
        patch.setattr(journal, "write_whole", around("note", journal.write_whole))
        original = redfish.each

        def each(machines: Any, work: Callable[[str], Any], *rest: Any) -> Iterator[Any]:
            def safe(name: str) -> Any:
                try:
                    return work(name)
                except Killed as error:
                    raise ProviderError("killed") from error

            return original(machines, safe, *rest)

        patch.setattr(redfish, "each", each)
        yield passed


def test_the_journal_is_whole_or_says_so(tmp_path: Path) -> None:
    from provisioner.errors import GpuprovError
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
    mine = rack(named=1, neighbours=0, trees=("dell-poweredge-r750-h100pcie",))
    bmc = mine.bmcs[mine.named[0]]
    bmc.faults.slow_s = 0.1

    class Interrupted(queue.Queue):  # type: ignore[type-arg]
        def get(self, *_: Any, **more: Any) -> Any:
            end = time.monotonic() + 10
            while not bmc.sessions and time.monotonic() < end:
                time.sleep(0.02)
            raise KeyboardInterrupt

    monkeypatch.setattr(queue, "Queue", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        up(mine, wait_s=30, count=1)
    assert bmc.opened == 1 and bmc.sessions == {}


def test_what_an_installer_reports_is_heard(rack: Callable[..., Rack], monkeypatch: pytest.MonkeyPatch) -> None:
    """One refuses, and is given up at once; the other has made itself a host key, which is pinned."""
    mine = rack(named=2, neighbours=0)
    serving, there = serve.serving, dict[str, serve.Images]()

    @contextlib.contextmanager
    def kept(*given: Any, **more: Any) -> Iterator[serve.Images]:
        with serving(*given, **more) as there["images"]:
            yield there["images"]

    monkeypatch.setattr(serve, "serving", kept)
    refuses, ends = mine.named

    def reports(name: str, image: str) -> None:
        found = Report("data") if name == refuses else Report(host_key=KEY)
        there["images"].reports[image.split("/")[3]] = found
        if name == ends:
            _boots(mine, name, image)

    for name in mine.named:
        mine.bmcs[name].booted = lambda _, image, name=name: reports(name, image)  # type: ignore[misc]
    with pytest.raises(ProviderError, match="1 of 2 machines could not be installed") as told:
        up(mine, wait_s=60.0, count=2)
    assert f"{refuses}: the installer switched the machine off: nothing was written: a disk of it holds" in str(
        told.value
    )
    paths = mine.machines(wanted(2))._way.paths
    assert list(ssh.load_pins(paths).values()) == [(ends, KEY)]
    steps = Journal(paths.site("here") / "bmc.json").load()
    assert [(one.step, one.host_key) for one in steps.values()] == [("failed", ""), ("installed", KEY)]


def test_a_run_that_was_killed_serves_the_same_installer_again(rack: Callable[..., Rack]) -> None:
    """The machine goes on reading where it did, by the same certificate; what it has reported counts."""
    mine = rack(named=2, neighbours=0)
    there = mine.machines(wanted(2))
    folder = private_dir(there._folder / "images")
    hosts, tokens = mine.listed(), ("ab" * 16, "cd" * 16)
    with there._serving(hosts[0]) as first:
        for host, token, key in zip(hosts, tokens, ("", KEY), strict=True):
            (folder / f"{token}.iso").write_bytes(b"x")
            one = Installation(host.name, host.serial, token=token, host_key=key)
            there._journal.note(one, "installing", url=first.url(token))
    with there._serving(hosts[0]) as again:
        assert (again.port, again.certificate) == (first.port, first.certificate)
        assert set(again.files) == set(tokens) and again.reports == {tokens[1]: Report(host_key=KEY)}
