"""What the machine's management controller (BMC) shows of it, whatever its operating system says: bare metal alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NoReturn

from provisioner.common.text import few
from provisioner.verify import bmc as judging
from provisioner.verify.bmc import Finding, Wanted
from provisioner.verify.check import Action, check, fail, saw, skip, unknown
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.bmc import Bmc
from provisioner.verify.peers import Peers

COMMON: Mapping[str, Any] = {
    "level": "standard",
    "applies": lambda e: e.bmc is not None,
    "otherwise": "cluster.yaml gives no BMC of it",
}
NEEDS: Mapping[str, Any] = {**COMMON, "needs": ("bmc.json",), "follows": ("bmc.identity",)}


def _bmc(node: Facts) -> Bmc:
    assert node.bmc is not None  # `needs` saw to it
    return node.bmc


def _of(expected: Expected, key: str) -> Any:
    return (expected.bmc or {}).get(key)


def _end(finding: Finding | None, none: str, *, action: Action | None = None) -> None:
    """A finding as the end of a check; `none`: why there is none."""
    if finding is None:
        skip(none)
    saw(actual=finding.message)
    if finding.status == "unknown":
        unknown(finding.message)
    if finding.status != "pass":
        fail(f"{finding.message}. {finding.action}" if finding.action else finding.message, action=action)


def _read(node: Facts, expected: Expected) -> Bmc:
    """For fatal checks: that a BMC is silent condemns no machine by itself, and bmc.answers says that it is."""
    return node.bmc if node.bmc is not None else _silent(node, expected)


def _silent(node: Facts, expected: Expected) -> NoReturn:
    source = node.source("bmc.json")
    if source.state == "absent" and expected.level == "quick":
        skip("only from level standard on")
    skip(f"bmc.answers: {source.reason}")


@check(
    "bmc.answers",
    severity="warn",
    action="reconfigure",
    **{**COMMON, "needs": ("bmc.json",)},
    says="The machine's BMC could not be read: nothing is known of it but what its operating system says.",
)
def test_answers(node: Facts) -> None:
    bmc = _bmc(node)
    saw(actual=" ".join(filter(None, (bmc.vendor, bmc.model, bmc.serial))))


@check(
    "bmc.identity",
    severity="fatal",
    action="reconfigure",
    documented="DMTF DSP0268, ComputerSystem SerialNumber: what tells one machine from another behind a wrong cable",
    reads=("bmc.json",),
    **COMMON,
    says="The BMC is another machine's than cluster.yaml says: what is switched off by it is the wrong one.",
)
def test_identity(node: Facts, expected: Expected) -> None:
    bmc = _read(node, expected)
    _end(judging.identity(bmc, _of(expected, "serial") or ""), "cluster.yaml has no serial number of it")


@check(
    "bmc.leaks",
    severity="fatal",
    action="vendor",
    documented="DMTF DSP0268, LeakDetector DetectorState: Warning and Critical are a leak",
    reads=("bmc.json",),
    **COMMON,
    says="A leak detector of the liquid cooling is wet: switch the machine off.",
)
def test_leaks(node: Facts, expected: Expected) -> None:
    _end(judging.leaks(_read(node, expected)), "its BMC shows no leak detectors")


@check(
    "bmc.power",
    severity="warn",
    action="reboot",
    **NEEDS,
    says="The BMC says that the machine is not on. Where its operating system answers, it is another machine's BMC.",
)
def test_power(node: Facts) -> None:
    _end(judging.power(_bmc(node)), "")


@check(
    "bmc.health",
    severity="warn",
    action="vendor",
    **NEEDS,
    says="The BMC rolls the health of the machine's parts up to something else than OK.",
)
def test_health(node: Facts) -> None:
    _end(judging.health(_bmc(node)), "")


@check(
    "bmc.conditions",
    severity="warn",
    action="vendor",
    **NEEDS,
    says="The BMC still reports a problem (ServiceConditions), although its health is OK.",
)
def test_conditions(node: Facts) -> None:
    _end(judging.conditions(_bmc(node)), "")


@check(
    "bmc.events",
    severity="warn",
    action="vendor",
    **NEEDS,
    says="The BMC's event log has new warnings since gpuprov looked last.",
)
def test_events(node: Facts) -> None:
    _end(judging.events(_bmc(node)), "")


@check(
    "bmc.critical",
    severity="fatal",
    documented="NVIDIA DGX User Guide, nvsm show health; github facebookresearch/gcm: Critical takes a node out",
    action="vendor",
    **COMMON,
    follows=("bmc.identity",),
    says="The BMC calls a power supply, a fan or a GPU critical. Drain the node, and open a case.",
)
def test_critical(node: Facts, expected: Expected) -> None:
    bmc = _read(node, expected)
    parts = [*(bmc.supplies or ()), *(bmc.fans or ())]
    critical = [f"{part.name} is {part.health}" for part in parts if part.health == "Critical"]
    critical += [f"{gpu.id} is {gpu.health}" for gpu in bmc.gpus or () if gpu.health == "Critical"]
    saw(expected="none is critical", actual=critical or "none is critical")
    if critical:
        fail(few(critical, 4))


@check(
    "bmc.supplies",
    severity="warn",
    action="replace",
    **{**NEEDS, "follows": ("bmc.identity", "bmc.critical")},
    says="A power supply is broken or has no feed: the next one that fails switches the machine off.",
)
def test_supplies(node: Facts) -> None:
    _end(judging.supplies(_bmc(node)), "its enclosure has them")


@check(
    "bmc.fans",
    severity="warn",
    action="replace",
    **{**NEEDS, "follows": ("bmc.identity", "bmc.critical")},
    says="A fan is broken or slow.",
)
def test_fans(node: Facts) -> None:
    _end(judging.fans(_bmc(node)), "its enclosure has them")


@check(
    "bmc.temperatures",
    severity="warn",
    action="vendor",
    **NEEDS,
    says="A temperature is at the limit that the BMC itself calls critical.",
)
def test_temperatures(node: Facts) -> None:
    _end(judging.temperatures(_bmc(node)), "")


@check(
    "bmc.gpus",
    severity="warn",
    action="replace",
    vendor="any",
    **NEEDS,
    says="BMC and operating system do not see the same GPUs, or both see too few. Reset a GPU that only the BMC "
    "sees; reseat or replace a GPU that neither sees.",
)
def test_gpus(node: Facts, expected: Expected) -> None:
    bmc, inside = _bmc(node), node.gpus_present
    saw(expected=expected.gpu_count, actual=len(bmc.gpus))
    finding = judging.gpus(bmc, Wanted(gpus=expected.gpu_count, os_gpus=inside))
    lost = inside is not None and inside < len(bmc.gpus) >= expected.gpu_count
    _end(finding, "", action="reboot" if lost else None)


@check(
    "bmc.gpu_health",
    severity="warn",
    action="vendor",
    vendor="any",
    **{**NEEDS, "follows": ("bmc.identity", "bmc.critical")},
    says="The BMC gives a GPU another health than OK.",
)
def test_gpu_health(node: Facts) -> None:
    _end(judging.gpu_health(_bmc(node)), "its BMC lists no GPUs: bmc.gpus")


@check(
    "bmc.firmware",
    severity="warn",
    action="reconfigure",
    **NEEDS,
    says="BIOS, BMC or a part has another firmware than cluster.yaml pins (sites.*.firmware).",
)
def test_firmware(node: Facts, expected: Expected) -> None:
    _end(judging.pinned(_bmc(node), _of(expected, "firmware")), "cluster.yaml pins no firmware of its group")


@check(
    "bmc.bios",
    severity="warn",
    action="reconfigure",
    **NEEDS,
    says="A BIOS setting that GPU work needs is wrong: decoding above 4 GB, NUMA, the performance profile, PCIe ACS.",
)
def test_bios(node: Facts) -> None:
    _end(judging.settings(_bmc(node)), "")


@check(
    "bmc.power_budget",
    severity="warn",
    action="none",
    **NEEDS,
    says="The machines of the site draw more power together than cluster.yaml allows (sites.*.power_budget_w).",
)
def test_power_budget(node: Facts, expected: Expected) -> None:
    _end(judging.budget(_bmc(node), _of(expected, "budget_w")), "cluster.yaml has no power budget of its site")


@check(
    "bmc.boot_override",
    severity="warn",
    action="reconfigure",
    **NEEDS,
    says="A boot override was left behind: the next boot may start an installer.",
)
def test_boot_override(node: Facts) -> None:
    if (finding := judging.override(_bmc(node))) is not None:
        _end(finding, "")


@check(
    "bmc.virtual_media",
    severity="warn",
    action="reconfigure",
    **NEEDS,
    says="An image is attached to a virtual drive: the machine may start from it.",
)
def test_virtual_media(node: Facts) -> None:
    if (finding := judging.media(_bmc(node))) is not None:
        _end(finding, "")


@check(
    "bmc.password",
    severity="warn",
    action="reconfigure",
    **NEEDS,
    says="The BMC takes a user and password that its maker has published: who reaches it can switch the machine off.",
)
def test_password(node: Facts) -> None:
    _end(judging.password(_bmc(node)), "no password was tried: it was read from a file")


@lru_cache(maxsize=4)
def _group(peers: Peers) -> dict[str, Bmc]:
    return {name: facts.bmc for name, facts in peers.nodes.items() if facts.bmc is not None}


@lru_cache(maxsize=4)
def _firmware(peers: Peers) -> dict[str, Finding]:
    return judging.firmware_differs(_group(peers))


@lru_cache(maxsize=4)
def _settings(peers: Peers) -> dict[str, Finding]:
    return judging.settings_differ(_group(peers))


@check(
    "fleet.firmware",
    severity="warn",
    action="reconfigure",
    **NEEDS,
    says="BIOS, BMC or a part has another firmware than on most machines of its group.",
)
def test_group_firmware(node: Facts, peers: Peers, name: str) -> None:
    _bmc(node)
    if len(_group(peers)) < 2:
        skip("no other machine of this group has a BMC that answered")
    _end(_firmware(peers)[name], "")


@check(
    "fleet.bios_settings",
    severity="warn",
    action="reconfigure",
    **NEEDS,
    says="A setting of BIOS or BMC is another than on most of its group: NUMA, IOMMU, PCIe ACS, the power cap.",
)
def test_group_settings(node: Facts, peers: Peers, name: str) -> None:
    if not _bmc(node).bios_settings and _bmc(node).cap_w is None:
        skip("the BMC shows no setting that gpuprov knows")
    if len(_settings(peers)) < 2:
        skip("no other machine of this group shows its BIOS settings")
    _end(_settings(peers)[name], "")
