"""What a BMC's facts mean, from real trees: a healthy machine passes, and each fault alone makes its own check red,
both as `gpuprov bmc` shows it and as a verdict of `verify`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from provisioner.machines.redfish import inventory, logs
from provisioner.machines.redfish.document import document, of_tree
from provisioner.machines.redfish.tree import Tree
from provisioner.verify.bmc import Finding, Wanted, firmware_differs, settings_differ
from provisioner.verify.bmc import judge as findings_of
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.parsers import Unreadable
from provisioner.verify.parsers.bmc import Bmc, parse
from provisioner.verify.pytest_runner import Case, Judged
from provisioner.verify.registry import declared
from tests.support.bmc import TREES
from tests.support.healthy_bundle import bundle, expected, healthy, without_gpu
from tests.support.judging import judge

R750 = "dell-poweredge-r750-h100pcie"
DGX = "nvidia-dgx-h100"
GB200 = "nvidia-gb200-nvl"
SYSTEM = "/redfish/v1/Systems/System.Embedded.1"
CHASSIS = "/redfish/v1/Chassis/System.Embedded.1"
SERIAL = "CNIVC0014M0388"
Edit = Callable[[dict[str, Any]], object]


def bmc_json(name: str, *edits: tuple[str, Edit]) -> str:
    """bmc.json of a tree that is changed."""
    known = json.loads(gzip.decompress((TREES / f"{name}.redfish.json.gz").read_bytes()))
    for uri, edit in edits:
        edit(known[uri])
    return json.dumps(of_tree(Tree(known.get)))


def findings(name: str, required: Wanted, *edits: tuple[str, Edit]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings_of(parse(bmc_json(name, *edits)), required)}


def test_a_healthy_machine_passes() -> None:
    by_check = findings(R750, Wanted(gpus=1, os_gpus=1, serial=SERIAL))
    wrong = {name: finding.status for name, finding in by_check.items() if finding.status != "pass"}
    assert wrong == {"conditions": "unknown", "events": "unknown"}


def health(value: str | None) -> Edit:
    return lambda component: component.update(Status={"State": "Enabled", "Health": value})


FAULTS: dict[str, tuple[str, Wanted, tuple[str, Edit], str, str]] = {
    "off": (R750, Wanted(1, 1), (SYSTEM, lambda s: s.update(PowerState="Off")), "power", "fail"),
    "power is not said": (R750, Wanted(1, 1), (SYSTEM, lambda s: s.pop("PowerState")), "power", "unknown"),
    "critical": (R750, Wanted(1, 1), (SYSTEM, health("Critical")), "health", "fail"),
    "warning": (R750, Wanted(1, 1), (SYSTEM, health("Warning")), "health", "warn"),
    "memory is interleaved over the sockets": (
        R750,
        Wanted(1, 1),
        (f"{SYSTEM}/Bios", lambda b: b["Attributes"].update(NodeInterleave="Enabled")),
        "bios settings",
        "warn",
    ),
    "no health": (R750, Wanted(1, 1), (SYSTEM, health(None)), "health", "unknown"),
    "a supply fails": (
        R750,
        Wanted(1, 1),
        (f"{CHASSIS}/PowerSubsystem/PowerSupplies/PSU.Slot.1", health("Critical")),
        "power supplies",
        "fail",
    ),
    "a supply says nothing": (
        R750,
        Wanted(1, 1),
        (f"{CHASSIS}/PowerSubsystem/PowerSupplies/PSU.Slot.1", health(None)),
        "power supplies",
        "unknown",
    ),
    "an empty bay": (
        R750,
        Wanted(1, 1),
        (
            f"{CHASSIS}/PowerSubsystem/PowerSupplies/PSU.Slot.1",
            lambda p: p.update(Status={"State": "Absent", "Health": "Warning"}),
        ),
        "power supplies",
        "pass",
    ),
    "a fan fails": (
        R750,
        Wanted(1, 1),
        (f"{CHASSIS}/ThermalSubsystem/Fans/Fan.Embedded.3A", health("Warning")),
        "fans",
        "warn",
    ),
    "too hot": (
        R750,
        Wanted(1, 1),
        (f"{CHASSIS}/Thermal", lambda t: t["Temperatures"][0].update(ReadingCelsius=999)),
        "temperatures",
        "fail",
    ),
    "a GPU is gone": (R750, Wanted(2, None), (SYSTEM, lambda s: None), "gpus", "fail"),
    "a GPU is lost to the system": (R750, Wanted(1, 0), (SYSTEM, lambda s: None), "gpus", "fail"),
    "a GPU is sick": (
        R750,
        Wanted(1, 1),
        (f"{SYSTEM}/Processors/Video.Slot.2-1", health("Critical")),
        "gpu health",
        "fail",
    ),
    "an override is left": (
        R750,
        Wanted(1, 1),
        (SYSTEM, lambda s: s["Boot"].update(BootSourceOverrideEnabled="Once", BootSourceOverrideTarget="Cd")),
        "boot override",
        "warn",
    ),
    "an image is left": (
        R750,
        Wanted(1, 1),
        (f"{SYSTEM}/VirtualMedia/1", lambda m: m.update(Inserted=True, ConnectedVia="URI", Image="http://x/y.iso")),
        "virtual media",
        "warn",
    ),
    "a leak": (
        GB200,
        Wanted(4, 4),
        ("/redfish/v1/Chassis/Chassis_0", lambda c: None),
        "leaks",
        "fail",
    ),
    "conditions behind an OK": (DGX, Wanted(8, 8), ("/redfish/v1/Systems/DGX", lambda s: None), "conditions", "fail"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_makes_its_check_red(name: str) -> None:
    tree, expected, edit, check, status = FAULTS[name]
    healthy_statuses = {
        key: finding.status for key, finding in findings(tree, Wanted(expected.gpus and 1, None)).items()
    }
    by_check = findings(tree, expected, edit)
    assert by_check[check].status == status, by_check[check]
    if tree == R750:
        changed = {key for key, finding in by_check.items() if finding.status != healthy_statuses.get(key, "pass")}
        assert changed <= {check, "health"}
    if status == "fail":
        assert by_check[check].action


def test_seen_by_neither_is_another_repair_than_lost_to_the_system() -> None:
    neither = findings(R750, Wanted(gpus=2, os_gpus=1))["gpus"]
    system = findings(R750, Wanted(gpus=1, os_gpus=0))["gpus"]
    bmc = findings(R750, Wanted(gpus=2, os_gpus=2))["gpus"]
    assert "sees 1 of 2 GPUs, and the operating system 1" in neither.message and "reseat" in neither.action
    assert "lost to the system alone" in system.message and "Xid 79" in system.action
    assert bmc.status == "warn" and "reset the BMC" in bmc.action


def test_what_could_not_be_read_is_no_missing_gpu() -> None:
    by_check = findings("supermicro-sys-a21ge-nbrt-b200-partial", Wanted(gpus=8))
    assert by_check["gpus"].status == "unknown"


def test_new_events_are_told() -> None:
    inventory_of_bmc = inventory.read(
        Tree(json.loads(gzip.decompress((TREES / f"{R750}.redfish.json.gz").read_bytes())).get)
    )
    new = [
        logs.Entry("SEL", "7", "2026-11-22", "Critical", "a PSU was lost", "PSU.1"),
        logs.Entry("SEL", "8", "", "OK", "fine"),
    ]
    read = parse(json.dumps(document(inventory_of_bmc, None, new)))
    events_finding = next(f for f in findings_of(read, Wanted(1)) if f.check == "events")
    assert (events_finding.status, "1 since the last look: PSU.1: a PSU was lost" in events_finding.message) == (
        "warn",
        True,
    )


def bmc(name: str = R750, **changes: Any) -> Bmc:
    return replace(parse(bmc_json(name)), **changes)


def test_firmware_that_differs_within_a_group() -> None:
    usual_bmc = bmc()
    other = replace(usual_bmc, firmware=usual_bmc.firmware | {"BIOS": "1.9.0"})
    by_node = firmware_differs({"a": usual_bmc, "b": usual_bmc, "c": other, "d": replace(usual_bmc, firmware={})})
    assert {name: f.status for name, f in by_node.items()} == {"a": "pass", "b": "pass", "c": "warn", "d": "unknown"}
    assert "BIOS 1.9.0, not 1.8.2" in by_node["c"].message
    two = firmware_differs({"a": usual_bmc, "c": other})
    assert [(f.status, "no common one" in f.message) for f in two.values()] == [("warn", True)] * 2


def test_bios_settings_that_differ_within_a_group() -> None:
    """Whether an IOMMU has to be on nobody can say; that one machine of three has it off is told."""
    usual_bmc = bmc(DGX)
    assert usual_bmc.bios_settings is not None
    rows = tuple(replace(row, value="Disable") if row.setting == "IOMMU" else row for row in usual_bmc.bios_settings)
    silent = replace(usual_bmc, bios_settings=None, cap_w=None)
    by_node = settings_differ(
        {"a": usual_bmc, "b": usual_bmc, "c": replace(usual_bmc, bios_settings=rows), "d": silent}
    )
    assert {name: f.status for name, f in by_node.items()} == {"a": "pass", "b": "pass", "c": "warn"}
    assert by_node["c"].message == "VTdSupport Disable, not Enable"
    by_node = settings_differ({"a": usual_bmc, "b": usual_bmc, "c": replace(usual_bmc, cap_w=900.0), "d": silent})
    assert by_node["c"].message == "power cap 900 W, not 500 W"


BIOS = f"{SYSTEM}/Bios"


def attribute(**values: str) -> Edit:
    return lambda resource: resource["Attributes"].update(values)


RED: dict[str, tuple[str, dict[str, Any], tuple[tuple[str, Edit], ...], str]] = {
    "bmc.identity": (R750, {"serial": "ELSEWHERE"}, (), "of the machine CNIVC0014M0388, not of ELSEWHERE"),
    "bmc.leaks": (
        GB200, {}, (("leak", lambda d: d.update(DetectorState="Critical")),), "switch the machine off",
    ),
    "bmc.power": (R750, {}, ((SYSTEM, lambda s: s.update(PowerState="Off")),), "the machine is Off"),
    "bmc.health": (R750, {}, ((SYSTEM, health("Critical")),), "the BMC says Critical"),
    "bmc.conditions": (DGX, {}, (), "HGX_GPU"),
    "bmc.supplies": (
        R750, {}, ((f"{CHASSIS}/PowerSubsystem/PowerSupplies/PSU.Slot.1", health("Warning")),), "is Warning",
    ),
    "bmc.critical": (
        R750, {}, ((f"{CHASSIS}/PowerSubsystem/PowerSupplies/PSU.Slot.1", health("Critical")),), "is Critical",
    ),
    "bmc.fans": (R750, {}, ((f"{CHASSIS}/ThermalSubsystem/Fans/Fan.Embedded.3A", health("Warning")),), "is Warning"),
    "bmc.temperatures": (
        R750, {}, ((f"{CHASSIS}/Thermal", lambda t: t["Temperatures"][0].update(ReadingCelsius=999)),), "999 C",
    ),
    "bmc.gpus": (R750, {"gpu_count": 2}, (), "the BMC sees 1 of 2 GPUs. drain power"),
    "bmc.gpu_health": (R750, {}, ((f"{SYSTEM}/Processors/Video.Slot.2-1", health("Warning")),), "is Warning"),
    "bmc.firmware": (R750, {"firmware": {"BIOS": "1.9.0"}}, (), "BIOS 1.8.2, not 1.9.0"),
    "bmc.bios": (R750, {}, ((BIOS, attribute(MmioAbove4Gb="Disabled")),), "MmioAbove4Gb is Disabled"),
    "bmc.boot_override": (
        R750, {},
        ((SYSTEM, lambda s: s["Boot"].update(BootSourceOverrideEnabled="Once", BootSourceOverrideTarget="Cd")),),
        "the next boot is from Cd (Once)",
    ),
    "bmc.virtual_media": (
        R750, {},
        ((f"{SYSTEM}/VirtualMedia/1", lambda m: m.update(Inserted=True, ConnectedVia="URI", Image="http://x/y.iso")),),
        "attached: http://x/y.iso",
    ),
}  # fmt: skip
ALONE = {"bmc.answers", "bmc.password", "bmc.events", "bmc.power_budget", "fleet.firmware", "fleet.bios_settings"}
"""Judged in tests of their own, below."""


def case(text: str | Output, group: str = "", **required: Any) -> Case:
    """A machine of which nothing but its BMC is known."""
    gpus = required.pop("gpu_count", 1)
    output = text if isinstance(text, Output) else Output(text, rc=0)
    want = replace(
        expected("dgx-h100"), gpu_count=gpus, bmc={"serial": SERIAL, "firmware": {}, "budget_w": None} | required
    )
    return Case(Bundle({"bmc.json": output}, collected=1.0), want, group=group)


def leaking(known: str) -> str:
    bmc_document = json.loads(known)
    bmc_document["leaks"][0]["health"] = "Critical"
    return json.dumps(bmc_document)


@pytest.fixture(scope="module")
def judged() -> dict[str, Judged]:
    cases = {}
    for id, (name, required, edits, _) in RED.items():
        text = leaking(bmc_json(name)) if id == "bmc.leaks" else bmc_json(name, *edits)
        serials = json.loads(text)["serial"]
        cases[id] = case(
            text, **({"serial": serials} | ({} if name == R750 else {"gpu_count": 8 if name == DGX else 4}) | required)
        )
    healthy_text = json.loads(bmc_json(R750)) | {"events": [], "site": {"drawn_w": 900.0, "silent": 0}}
    event = {"time": "now", "severity": "Critical", "message": "PSU lost", "about": ""}
    cases["healthy"] = case(json.dumps(healthy_text), "g", firmware={"BIOS": "1.8.2"}, budget_w=1000.0)
    cases["known password"] = case(json.dumps(healthy_text | {"factory_password": True}))
    cases["own password"] = case(json.dumps(healthy_text | {"factory_password": False}))
    cases["event"] = case(json.dumps(healthy_text | {"events": [event]}))
    cases["over"] = case(json.dumps(healthy_text), budget_w=800.0)
    cases["not all"] = case(json.dumps(healthy_text | {"site": {"drawn_w": 700.0, "silent": 2}}), budget_w=800.0)
    cases["silent"] = case(Output("", missing=True, error="the BMC does not accept the user and password"))
    cases["garbage"] = case("{")
    cases["no BMC"] = Case(Bundle({}, collected=1.0), replace(expected("dgx-h100"), bmc=None))
    cases["unpinned part"] = case(json.dumps(healthy_text), firmware={"CPLD": "1"})
    other = healthy_text | {"firmware": healthy_text["firmware"] | {"BIOS": "0.1"}}
    virtual = [row | {"value": "Disabled"} for row in healthy_text["bios_settings"] if row["setting"] == "SR-IOV"]
    other_settings = [row for row in healthy_text["bios_settings"] if row["setting"] != "SR-IOV"]
    unlike = healthy_text | {"bios_settings": other_settings + virtual}
    cases |= {"like": case(json.dumps(healthy_text), "g"), "other": case(json.dumps(other), "g")}
    cases["unlike"] = case(json.dumps(unlike), "g")
    return judge(cases)


OURS = {c.id for c in declared() if c.id.startswith("bmc.")} | {"fleet.firmware", "fleet.bios_settings"}


def statuses(result: Judged) -> dict[str, str]:
    return {c.id: c.status for c in result.checks if c.id in OURS}


def failing(result: Judged) -> set[str]:
    return {id for id, status in statuses(result).items() if status == "fail"}


@pytest.mark.parametrize("id", RED)
def test_each_check_of_verify_is_red_by_its_own_fault(judged: dict[str, Judged], id: str) -> None:
    name, _, _, message = RED[id]
    check = next(c for c in judged[id].checks if c.id == id)
    assert (check.status, message in check.message) == ("fail", True), check
    if name == R750:
        assert failing(judged[id]) <= {id, "bmc.health"}, "one fault, one check"


def test_a_healthy_machine_is_green_and_every_check_is_proven(judged: dict[str, Judged]) -> None:
    status_by_check = statuses(judged["healthy"])
    assert {id: s for id, s in status_by_check.items() if s not in ("pass", "skip")} == {"bmc.conditions": "unknown"}
    assert status_by_check["bmc.leaks"] == "skip", "it shows no detectors"
    assert OURS == {*RED, *ALONE} == set(status_by_check)
    assert statuses(judged["bmc.conditions"])["bmc.answers"] == "pass"


def test_events_budget_and_pins(judged: dict[str, Judged]) -> None:
    assert failing(judged["event"]) == {"bmc.events"}
    assert failing(judged["over"]) == {"bmc.power_budget"}
    assert statuses(judged["not all"])["bmc.power_budget"] == "unknown"
    assert statuses(judged["unpinned part"])["bmc.firmware"] == "unknown"


def test_a_password_that_its_maker_has_published(judged: dict[str, Judged]) -> None:
    assert failing(judged["known password"]) == {"bmc.password"}
    assert statuses(judged["own password"])["bmc.password"] == "pass"
    assert statuses(judged["healthy"])["bmc.password"] == "skip", "a saved tree: nobody signed in"


def test_firmware_of_a_group_in_verify(judged: dict[str, Judged]) -> None:
    by_node = {name: statuses(judged[name]) for name in ("healthy", "like", "other", "unlike")}
    assert {name: (row["fleet.firmware"], row["fleet.bios_settings"]) for name, row in by_node.items()} == {
        "healthy": ("pass", "pass"), "like": ("pass", "pass"), "other": ("fail", "pass"), "unlike": ("pass", "fail"),
    }  # fmt: skip
    assert statuses(judged["event"])["fleet.bios_settings"] == "skip"
    assert statuses(judged["event"])["fleet.firmware"] == "skip", "there is no other machine of its group"


@pytest.mark.parametrize("name", ["silent", "garbage"])
def test_a_bmc_that_does_not_answer_is_unknown_and_condemns_nobody(judged: dict[str, Judged], name: str) -> None:
    by_check = statuses(judged[name])
    assert by_check["bmc.answers"] == by_check["bmc.power"] == by_check["bmc.gpus"] == "unknown"
    assert "pass" not in by_check.values()
    assert not any(c.condemns for c in judged[name].checks if c.id.startswith("bmc."))
    answers = next(c for c in judged["silent"].checks if c.id == "bmc.answers")
    assert "does not accept the user and password" in answers.message


def test_a_machine_without_a_bmc_has_nothing_to_judge(judged: dict[str, Judged]) -> None:
    assert set(statuses(judged["no BMC"]).values()) == {"skip"}


def test_a_gpu_that_the_bmc_still_sees_wants_another_repair() -> None:
    """The system has lost one of eight, and the BMC sees eight, or seven as well."""
    texts = healthy("dgx-h100")
    texts["nvidia-smi.xml"] = without_gpu(str(texts["nvidia-smi.xml"]), 3)
    eight = json.loads(bmc_json("supermicro-sys-821ge-tnhr"))
    assert len(eight["gpus"]) == 8
    want = replace(expected("dgx-h100"), bmc={"serial": eight["serial"], "firmware": {}, "budget_w": None})
    seven = eight | {"gpus": eight["gpus"][1:], "gpus_complete": True}
    verdicts = judge({
        name: Case(bundle(texts | {"bmc.json": json.dumps(bmc_document)}), want)
        for name, bmc_document in (("lost", eight), ("gone", seven))
    })  # fmt: skip
    lost, removed = (next(c for c in verdicts[name].checks if c.id == "bmc.gpus") for name in ("lost", "gone"))
    assert (lost.status, lost.action) == ("fail", "reboot") and "lost to the system alone" in lost.message
    assert (removed.status, removed.action) == (
        "fail",
        "replace",
    ) and "sees 7 of 8 GPUs, and the operating system 7" in removed.message


NOT_READ = ("", "[]", "{}", '{"schema": 2, "gpus": []}', '{"schema": 1, "gpus": [{}]}', "[" * 9000,
            '{"schema": 1, "gpus": [], "fans": [{"health": "Critical"}]}')  # fmt: skip


@pytest.mark.parametrize("text", NOT_READ)
def test_what_is_no_document_is_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        parse(text)


WHOLE = [name for file in sorted(TREES.glob("*.gz")) if (name := file.name.split(".")[0]) != "dell-idrac10-partial"]
"""That one is a part without a computer system."""


@pytest.mark.parametrize("name", WHOLE)
def test_every_tree_gives_a_document_that_is_read(name: str) -> None:
    bmc_document = parse(bmc_json(name))
    assert bmc_document.serials and {finding.status for finding in findings_of(bmc_document, Wanted(8))} <= {
        "pass",
        "warn",
        "fail",
        "unknown",
    }


SETTINGS: dict[str, dict[str, bool | None] | None] = {
    R750: {
        "MmioAbove4Gb": True, "NodeInterleave": True, "SysProfile": True, "WorkloadProfile": None,
        "SriovGlobalEnable": None,
    },
    DGX: {"NumaEn": True, "VTdSupport": None, "SriovSupport": None},
    "hpe-apollo6500-xl675d-a100": {
        "WorkloadProfile": True, "AccessControlService": False, "ProcAmdIoVt": None, "Sriov": None,
    },
    "hpe-dl380a-gen12-h200nvl": {
        "Numa": True, "WorkloadProfile": False, "AccessControlService": False, "IntelProcVtd": None, "Sriov": None,
    },
    "lenovo-sr670v2-l40": {
        "Processors_PCIeACSCTL": False, "DevicesandIOPorts_IntelVTforDirectedIOVTd": None,
        "DevicesandIOPorts_SRIOV": None,
    },
    "supermicro-sys-821ge-tnhr": {
        "NUMA_003B": True, "PCIeACSCTL_1E3C": True, "Above4GDecoding_0041": True,
        "IntelVTforDirectedI_O_VT_d__1E32": None, "SR_IOVSupport_0047": None,
    },
    "supermicro-x10sdv-tln4f": None,
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_bios_settings_are_read_in_each_vendors_words(name: str) -> None:
    settings = parse(bmc_json(name)).bios_settings
    assert (None if settings is None else {setting.attribute: setting.good for setting in settings}) == SETTINGS[name]
