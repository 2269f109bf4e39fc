"""What may be momentary: the probe looks at it three times, every look is kept, and what all of them show condemns."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from provisioner.verify.bundle import Output
from provisioner.verify.parsers import nvidia_smi
from provisioner.verify.probe import runner as probe
from provisioner.verify.pytest_runner import Case
from provisioner.verify.request import ProbeRequest
from provisioner.verify.results import CheckResult
from provisioner.verify.tools import FILES
from tests.support.healthy_bundle import bundle, capture, edit, expected, healthy
from tests.support.judging import judge

P4D, DGX, GB200 = "p4d.24xlarge", "dgx-h100", "p6e-gb200.36xlarge"
BRAKE, HEAT = "hw_power_brake_slowdown", "hw_thermal_slowdown"
Texts = dict[str, str | Output]


def results(machine: str, texts: Texts) -> dict[str, CheckResult]:
    return {r.id: r for r in judge({"a": Case(bundle(texts), expected(machine, "quick"), None)})["a"].checks}


def slowed(texts: Texts, *looks: dict[int, str]) -> Texts:
    """The texts with several looks at nvidia-smi, each with a reason on some GPUs."""
    xml = str(texts["nvidia-smi.xml"])
    for number, look in enumerate(looks, 1):
        slowed_xml = xml
        for gpu, reason in look.items():
            values = {f"clocks_event_reasons__clocks_event_reason_{reason}": "Active"}
            slowed_xml = edit(slowed_xml, gpu, **values)
        texts["nvidia-smi.xml" if number == 1 else f"nvidia-smi-{number}.xml"] = slowed_xml
    return texts


@pytest.mark.parametrize(
    ("id", "reason"), [("gpu.power_brake", BRAKE), ("gpu.throttle", HEAT), ("gpu.throttle", "hw_slowdown")]
)
def test_a_slowdown_condemns_where_each_look_shows_it(id: str, reason: str) -> None:
    def judged(*looks: dict[int, str]) -> CheckResult:
        return results(P4D, slowed(healthy(P4D), *looks))[id]

    three = judged({3: reason}, {3: reason}, {3: reason})
    assert (three.status, three.severity) == ("fail", "fatal")
    assert "GPU 3" in three.message and "each of 3 looks" in three.message
    two = judged({3: reason}, {3: reason})  # the tool's deadline had no room for a third
    assert (two.status, two.severity) == ("fail", "fatal")
    over = judged({3: reason}, {3: reason}, {})
    assert (over.status, over.severity, "moment" in over.message) == ("note", "fatal", True)
    assert judged({3: reason}, {}).status == "note"
    other = judged({3: reason}, {4: reason}, {5: reason})
    assert other.status == "note"
    single_look = judged({3: reason})
    assert (single_look.status, single_look.severity) == ("fail", "warn")
    assert "one look was made" in single_look.message
    assert judged().status == "pass"


def test_what_software_slows_down_warns_however_often_it_is_seen() -> None:
    look = {2: "sw_thermal_slowdown"}
    result = results(P4D, slowed(healthy(P4D), look, look, look))["gpu.throttle"]
    assert (result.status, result.severity) == ("fail", "warn")


def test_a_real_node_with_the_brake_on_all_gpus_seen_once_is_not_condemned() -> None:
    """github leptonai/gpud keeps this output as that of a healthy node."""
    smi = nvidia_smi.parse(capture("nvidia_smi/q-h100-8gpu-535.txt"))
    assert all(BRAKE in gpu.throttle for gpu in smi.gpus)
    texts = healthy(DGX) | {"nvidia-smi.xml": capture("nvidia_smi/q-h100-8gpu-535.txt")}
    once = results(DGX, texts)["gpu.power_brake"]
    assert (once.status, once.severity) == ("fail", "warn")
    later_looks = {f"nvidia-smi-{n}.xml": capture("nvidia_smi/q-h100-8gpu-535.txt") for n in (2, 3)}
    thrice = results(DGX, texts | later_looks)["gpu.power_brake"]
    assert (thrice.status, thrice.severity) == ("fail", "fatal")


def test_a_look_that_hangs_is_a_driver_that_hangs() -> None:
    texts = slowed(healthy(P4D), {3: BRAKE}) | {"nvidia-smi-2.xml": Output("", timed_out=True, seconds=20.0)}
    assert results(P4D, texts)["driver.responds"].status == "fail"


# links that train after a boot


def booted(texts: Texts, seconds: float) -> Texts:
    texts["host.json"] = re.sub(r'("proc/uptime": ")[0-9.]+', rf"\g<1>{seconds}", str(texts["host.json"]))
    return texts


def polling(texts: Texts) -> str:
    first = str(texts["ibstat.txt"]).replace("State: Active", "State: Down", 1)
    return first.replace("Physical state: LinkUp", "Physical state: Polling", 1)


def inactive(texts: Texts) -> str:
    return re.sub(r"Link 0: [0-9.]+ GB/s", "Link 0: <inactive>", str(texts["nvlink.txt"]), count=1)


def joining(texts: Texts) -> str:
    return edit(str(texts["nvidia-smi.xml"]), 1, fabric__state="In Progress", fabric__status="N/A")


@pytest.mark.parametrize(
    ("machine", "id", "file", "breaks"),
    [(DGX, "ib.ports", "ibstat.txt", polling), (DGX, "nvlink.links", "nvlink.txt", inactive),
     (GB200, "gpu.fabric_state", "nvidia-smi.xml", joining)],
)  # fmt: skip
def test_a_link_that_trains_after_a_boot_condemns_where_it_does_not_come_up(
    machine: str, id: str, file: str, breaks: Callable[[Texts], str]
) -> None:
    stem, _, suffix = file.rpartition(".")
    healthy_texts = healthy(machine)
    sick = breaks(healthy_texts)

    def judged(uptime: float, *looks: str) -> tuple[str, str]:
        files = {file if n == 1 else f"{stem}-{n}.{suffix}": look for n, look in enumerate(looks, 1)}
        result = results(machine, booted(healthy(machine), uptime) | files)[id]
        return result.status, result.severity

    assert judged(120, sick, sick, sick) == ("fail", "fatal")
    assert judged(120, sick, sick, str(healthy_texts[file])) == ("pass", "fatal")
    assert judged(120, sick, str(healthy_texts[file])) == ("pass", "fatal")
    assert judged(120, sick) == ("fail", "warn")  # an older bundle
    assert judged(86400, sick) == ("fail", "fatal")  # nothing trains a day after the boot
    assert judged(120, str(healthy_texts[file])) == ("pass", "fatal")


# the probe


def probed_files(
    tool: dict[str, Any], texts: list[str], monkeypatch: pytest.MonkeyPatch, seconds: float = 30.0
) -> list[str]:
    """The files that the probe makes where the tool gives these answers one after the other."""
    answers = iter(texts)
    monkeypatch.setattr(probe, "run", lambda *_, **__: probe.result(next(answers), 0))
    monkeypatch.setattr(probe.time, "sleep", lambda _: None)
    answer = probe.job("x", seconds, {"tools": {"x": tool}, "wait": 5.0})
    return ["x", *answer.get("beside", {})]


def tool_of(file: str) -> dict[str, Any]:
    document = FILES[file].to_json()
    assert document is not None
    return document


def test_a_healthy_answer_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for file in ("nvidia-smi.xml", "nvlink.txt", "ibstat.txt"):
        assert probed_files(tool_of(file), [str(healthy(DGX)[file])], monkeypatch) == ["x"]


def test_a_fault_is_looked_at_until_it_is_over_or_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy_xml = str(healthy(P4D)["nvidia-smi.xml"])
    braked_xml = str(slowed(healthy(P4D), {3: BRAKE})["nvidia-smi.xml"])
    tool = tool_of("nvidia-smi.xml")
    assert probed_files(tool, [braked_xml, braked_xml, braked_xml], monkeypatch) == [
        "x",
        "nvidia-smi-2.xml",
        "nvidia-smi-3.xml",
    ]
    assert probed_files(tool, [braked_xml, healthy_xml], monkeypatch) == ["x", "nvidia-smi-2.xml"]
    assert probed_files(tool, [braked_xml], monkeypatch, seconds=5.5) == [
        "x"
    ]  # no look goes beyond the tool's deadline


def test_a_link_that_is_down_is_looked_at_again_soon_after_a_boot_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sick, tool = polling(healthy(DGX)), tool_of("ibstat.txt")
    for uptime, files in (("95.20 1.00\n", 3), ("86400.00 1.00\n", 1), ("", 3)):
        monkeypatch.setattr(probe, "read_file", lambda _, text=uptime: probe.result(text, 0))
        assert len(probed_files(tool, [sick, sick, sick], monkeypatch)) == files


@pytest.mark.parametrize(
    ("file", "real", "looks"),
    [("ibstat.txt", "ibstat/h100-roce-400g-port-polling.txt", 3), ("ibstat.txt", "ibstat/a100-9ca-active.txt", 1),
     ("ibstat.txt", "ibstat/h20-2-eth-ports-down.txt", 1), ("nvlink.txt", "nvlink/v100-7gpu-inactive.txt", 3),
     ("nvlink.txt", "nvlink/a100-1gpu-all-inactive-azure.txt", 3), ("nvlink.txt", "nvlink/a100-8gpu-ok.txt", 1)],
)  # fmt: skip
def test_real_outputs_of_ports_and_links_that_may_train(
    monkeypatch: pytest.MonkeyPatch, file: str, real: str, looks: int
) -> None:
    """A port that somebody switched off (Disabled) does not train."""
    monkeypatch.setattr(probe, "read_file", lambda _: probe.result("95.20 1.00\n", 0))
    assert len(probed_files(tool_of(file), [capture(real)] * 3, monkeypatch)) == looks


def test_three_looks_fit_into_each_tools_deadline() -> None:
    repeated = [tool for tool in FILES.values() if tool.momentary or tool.training]
    assert {tool.file for tool in repeated} == {"nvidia-smi.xml", "nvlink.txt", "ibstat.txt"}
    assert all(tool.seconds >= 2 * ProbeRequest({}).wait_s + 3 for tool in repeated)
