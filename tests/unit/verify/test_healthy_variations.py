"""What is healthy stays green, however it is told: other driver branches, orders, spellings, line ends, harmless noise.

The checks are called as the plugin calls them, without a process: more than three hundred nodes in seconds.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import random
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.catalog import load
from provisioner.verify import checks
from provisioner.verify.check import Check, Failed, Skipped, Unknown
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts, read
from tests.support.healthy_bundle import bundle, expected, healthy

pytestmark = pytest.mark.heavy

MACHINES = [machine.name for machine in load().machines() if not machine.retired]
Texts = dict[str, Any]
N_A = ("N/A", "[N/A]", "Not Supported", "Requested functionality has been deprecated")


@cache
def functions() -> tuple[tuple[Check, Callable[..., None], tuple[str, ...]], ...]:
    """Every check that judges one node by itself, and its fixtures."""
    rows = []
    for info in pkgutil.iter_modules(checks.__path__):
        module = importlib.import_module(f"{checks.__name__}.{info.name}")
        for function in vars(module).values():
            declared = getattr(function, "__check__", None)
            fixtures = tuple(inspect.signature(function).parameters) if isinstance(declared, Check) else ()
            if isinstance(declared, Check) and set(fixtures) <= {"node", "expected"}:
                rows.append((declared, function, fixtures))
    return tuple(rows)


def judge(node: Facts, want: Expected) -> dict[str, str]:
    """Check id → what is wrong, for every check that fails or cannot answer what it read."""
    wrong = {}
    for declared, function, fixtures in functions():
        needs = [want.gpu_file if need == "gpus" else need for need in declared.needs]
        if declared.inapplicable(want) or any(node.source(need).state == "absent" for need in needs):
            continue
        unread = [node.source(need).reason for need in needs if node.source(need).state != "read"]
        if unread:
            wrong[declared.id] = f"unread: {unread[0]}"
            continue
        values: dict[str, Any] = {"node": node, "expected": want}
        try:
            function(**{name: values[name] for name in fixtures})
        except Skipped:
            continue
        except (Failed, Unknown) as verdict:
            wrong[declared.id] = f"{type(verdict).__name__}: {verdict}"
    return wrong


@cache
def texts_of(machine: str) -> Texts:
    texts = dict(healthy(machine))
    if "nvidia-smi.xml" in texts:  # the lists of supported clocks are nine tenths of the document
        short = re.sub(r"<supported_clocks>.*?</supported_clocks>", "", str(texts["nvidia-smi.xml"]), flags=re.DOTALL)
        texts["nvidia-smi.xml"] = short
    return texts


def swap(text: str, tag: str, value: str) -> str:
    return re.sub(rf"(<{tag}>)[^<]*(</{tag}>)", rf"\g<1>{value}\g<2>", text)


def generation(xml: str, chance: random.Random, machine: str) -> str:
    """The same GPUs as another driver branch tells of them."""
    arch = load().machine(machine).gpu_arch
    first = 570 if arch == "blackwell" else 535 if arch == "hopper" else 450
    branch = chance.choice([b for b in ("450", "535", "550", "570", "580", "610") if int(b) >= first])
    if branch in ("450", "535"):
        xml = re.sub(r"<gpu_recovery_action>.*?</gpu_recovery_action>", "", xml)
        xml = re.sub(r"<platformInfo>.*?</platformInfo>", "", xml, flags=re.DOTALL)
        xml = re.sub(r"<(sram_threshold_exceeded)>.*?</\1>", "", xml)
    if branch == "450":
        xml = re.sub(r"<fabric>.*?</fabric>", "", xml, flags=re.DOTALL)
        xml = xml.replace("clocks_event_reason", "clocks_throttle_reason")
        xml = re.sub(r"<(/?)gpu_power_readings>", r"<\1power_readings>", xml)
        xml = xml.replace("current_power_limit>", "enforced_power_limit>")
        xml = re.sub(r"<(board_part_number|max_device_link_gen)>.*?</\1>", "", xml)
    if branch == "570":
        xml = swap(xml, "reset_required", N_A[3])
    if branch == "610":
        xml = re.sub(
            r"(</?)(driver|cuda)_version>", lambda m: f"{m[1]}{'kmd' if m[2] == 'driver' else 'cuda_umd'}_version>", xml
        )
        xml = re.sub(r"(<(?:default_)?applications_clocks>.*?</(?:default_)?applications_clocks>)",
                     lambda m: re.sub(r"\d+ MHz", N_A[3], m[1]), xml, flags=re.DOTALL)  # fmt: skip
    doctype = chance.choice(
        ("", '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v11.dtd">', "<!DOCTYPE nvidia_smi_log>")
    )
    return '<?xml version="1.0" ?>\n' + doctype + "\n" + xml[xml.index("<nvidia_smi_log") :]


def readings(xml: str, chance: random.Random) -> str:
    """What differs from minute to minute and from board to board on healthy nodes."""

    def each(tag: str, make: Callable[[], str], text: str) -> str:
        return re.sub(rf"(<{tag}>)[^<]*(</{tag}>)", lambda m: f"{m[1]}{make()}{m[2]}", text)

    xml = each("gpu_temp", lambda: f"{chance.randint(18, 70)} C", xml)
    xml = each("current_link_gen", lambda: str(chance.randint(1, 5)), xml)
    xml = each("replay_counter", lambda: str(chance.randint(90, 180)), xml)
    xml = each("gpu_util", lambda: chance.choice(("0 %", "3 %", "N/A")), xml)
    xml = each("average_power_draw", lambda: chance.choice(("61.22 W", "N/A", "[N/A]")), xml)
    xml = each("fan_speed", lambda: chance.choice(("N/A", "30 %")), xml)
    xml = each("dram_correctable", lambda: str(chance.choice((0, 0, 0, 177, 353))), xml)
    xml = each("board_part_number", lambda: chance.choice(("N/A", "692-2G506-0200-003")), xml)
    xml = each("clocks_event_reason_sw_power_cap", lambda: chance.choice(("Active", "Not Active")), xml)
    xml = each("clocks_event_reason_gpu_idle", lambda: chance.choice(("Active", "Not Active")), xml)
    xml = each("addressing_mode", lambda: chance.choice(("HMM", "None", "Unknown Error", "N/A")), xml)
    if chance.random() < 0.3:
        xml = swap(xml, "serial", chance.choice(N_A[:2]))
    if chance.random() < 0.3:
        xml = re.sub(r'id="0000(\w{4}:)', r'id="\1', xml)
    return xml


HARMLESS = (
    "NVRM: Xid (PCI:0001:00:00): 31, pid=4711, name=python3, MMU Fault",
    "NVRM: Xid (PCI:0002:00:00): 43, pid=4711, name=python3, Ch 00000018",
    "NVRM: Xid (PCI:0001:00:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping",
    "nvidia-nvswitch2: open (major=510)",
    "nvidia-nvlink: Unregistered Nvlink Core, major device number 510",
    "pcieport 0000:00:03.1: AER: Corrected error received: 0000:00:00.0",
    "mlx5_core 0000:18:00.0 ib0: Link up",
    "perf: interrupt took too long (2510 > 2500)",
    "EXT4-fs (nvme0n1p1): re-mounted. Opts: errors=remount-ro",
    "audit: type=1400 apparmor=\"DENIED\" operation=\"open\" comm=\"nvidia-smi\" error=-13",
    "nvme nvme2: 96/0/0 default/read/poll queues",
    "amdgpu 0000:0c:00.0: amdgpu: GPU reset(2) succeeded!",
    "systemd[1]: nvidia-persistenced.service: Deactivated successfully.",
)  # fmt: skip


def log(text: str, chance: random.Random) -> str:
    stamp = chance.choice(
        ("[{:12.6f}] ", "<6>[{:12.6f}] ", "[Fr Okt 14 14:56:49 2022] ", "Nov 21 12:00:00 n kernel: ", "4,7,2,-;")
    )
    rows = [re.sub(r"^\[\s*[\d.]+\] ", "", row) for row in text.splitlines() if not row.startswith("6,")]
    rows[20:20] = chance.choices(HARMLESS, k=6)
    return "\n".join(stamp.format(i / 3) + row for i, row in enumerate(rows)) + "\n"


def shuffled(text: str, chance: random.Random) -> str:
    rows = text.splitlines()
    return "\n".join(chance.sample(rows, len(rows))) + "\n"


def spelled(texts: Texts, chance: random.Random) -> Texts:
    for name in ("modules.txt", "packages.txt", "holds.txt", "lspci.txt", "nvidia-dev.txt"):
        if name in texts and chance.random() < 0.5:
            texts[name] = shuffled(texts[name], chance)
    if "topo.txt" in texts and chance.random() < 0.5:
        texts["topo.txt"] = "\n".join("  ".join(row.split()) for row in texts["topo.txt"].splitlines()) + "\n"
    if "topo.txt" in texts and chance.random() < 0.3:
        texts["topo.txt"] = "\x1b[4m" + texts["topo.txt"].replace("\n", "\x1b[0m\n", 1)
    if "lspci.txt" in texts and chance.random() < 0.3:
        texts["lspci.txt"] = re.sub(r"(?m)^0000:", "", texts["lspci.txt"])
    if "nvlink.txt" in texts and chance.random() < 0.5:
        texts["nvlink.txt"] = texts["nvlink.txt"].replace("\t Link", "         Link")
    for name in texts:
        if isinstance(texts[name], str) and chance.random() < 0.2:
            texts[name] = texts[name].replace("\n", "\r\n")
        if name.endswith((".txt", ".xml")) and name not in ("kernel.txt",) and chance.random() < 0.1 and texts[name]:
            texts[name] = "\ufeff" + texts[name]
    return texts


def varied(machine: str, seed: int) -> Texts:
    chance = random.Random(f"{machine}/{seed}")
    texts = dict(texts_of(machine))
    if "nvidia-smi.xml" in texts:
        texts["nvidia-smi.xml"] = readings(generation(texts["nvidia-smi.xml"], chance, machine), chance)
    texts["dmesg.txt"] = log(str(texts["dmesg.txt"]), chance)
    return spelled(texts, chance)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_machine_once(machine: str) -> None:
    assert judge(read(bundle(varied(machine, 0))), expected(machine, "stress")) == {}


@settings(
    max_examples=int(os.environ.get("GPUPROV_TEST_VARIATIONS", "80")), deadline=None, database=None, derandomize=True
)
@given(st.sampled_from(MACHINES), st.integers(1, 10**9))
def test_a_healthy_node_stays_green_however_it_is_told(machine: str, seed: int) -> None:
    assert judge(read(bundle(varied(machine, seed))), expected(machine, "stress")) == {}


def test_the_checks_called_here_do_find_faults() -> None:
    texts = dict(texts_of("p4d.24xlarge"))
    texts["dmesg.txt"] = str(texts["dmesg.txt"]) + "[9.9] EDAC MC0: 1 UE memory read error\n"
    assert set(judge(read(bundle(texts)), expected("p4d.24xlarge"))) == {"log.machine_check"}
