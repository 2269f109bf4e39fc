"""The exported acceptance suite (provisioner/verify/testinfra_suite) in this process, on outputs that a bundle has."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from provisioner.verify import check_runner, health
from provisioner.verify.bundle import Output
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import read
from provisioner.verify.parsers import systemd
from provisioner.verify.plugin_nodes import peers_by_node
from provisioner.verify.registry import plain_checks
from provisioner.verify.testinfra_export import facts_of
from tests.support.healthy_bundle import bundle

SUITE = Path(__file__).parents[2] / "provisioner" / "verify" / "testinfra_suite"
COVERED = {
    "driver.responds", "driver.version", "cuda.version", "nccl.version", "packages.locked", "gpu.count", "gpu.model",
    "gpu.memory", "gpu.mig", "nvlink.links", "nvlink.topology", "nvswitch.fabric", "nvswitch.present",
    "gpu.fabric_state", "services.imex", "container.image", "framework.versions", "dcgm.exporter", "ib.ports",
    "ib.rate", "efa.devices",
}  # fmt: skip
"""The checks of gpuprov's whose verdict the suite has too. Of gpu.ecc it has the mode alone."""
COMMAND = re.compile(r"timeout --kill-after=5 \d+ (.*)", re.S)
FILES = {
    "nvidia-smi -q -x": "nvidia-smi.xml", "nvidia-smi nvlink -s": "nvlink.txt", "nvidia-smi topo -m": "topo.txt",
    "rocm-smi": "rocm-smi.json", "dpkg-query": "packages.txt", "python3 -c": "dcgm-exporter.prom",
    "lspci": "lspci.txt", "ibstat": "ibstat.txt", "fi_info": "fi_info.txt",
}  # fmt: skip
"""How commands of the suite begin, and the file of a bundle that has their output."""


@dataclass(frozen=True)
class Result:
    """testinfra's, as far as the suite reads it."""

    rc: int
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""


class BundleHost:
    """A testinfra host whose commands print what a bundle has."""

    def __init__(self, files: Mapping[str, str | Output]) -> None:
        self.files = {name: Output(text, rc=0) if isinstance(text, str) else text for name, text in files.items()}
        self.commands: list[str] = []

    def run(self, command: str) -> Result:
        match = COMMAND.search(shlex.split(command)[2])
        assert match is not None, f"a command without a deadline: {command}"
        self.commands.append(match[1])
        return self._answer(match[1])

    def _answer(self, command: str) -> Result:
        name = next((file for start, file in FILES.items() if command.startswith(start)), None)
        arguments = shlex.split(command)
        match arguments:
            case _ if name is not None:
                return self._file(name)
            case ["docker", "image", "inspect", "--format", _, image]:
                return self._image(image)
            case ["docker", "run", *_, image, "-c", _]:
                return self._framework(image)
            case ["docker", "rm", "--force", _]:
                return Result(0)
            case ["systemctl", "is-active", unit]:
                return self._unit(unit)
            case ["sh", "-c", _]:
                devices = json.loads(self._text("rdma.json"))["devices"]
                rows = (f"{key} /sys/devices/pci0000:00/{row.get('pci', '')}\n" for key, row in devices.items())
                return Result(0, "".join(rows).encode())
        raise AssertionError(f"a command that no bundle has: {command}")

    def _file(self, name: str) -> Result:
        output = self.files.get(name)
        if output is None or output.missing:
            return Result(127, b"", b"timeout: failed to run command: No such file or directory")
        if output.timed_out:
            return Result(124)
        return Result(output.rc or 0, output.text.encode(), output.error.encode())

    def _text(self, name: str) -> str:
        return self.files[name].text

    def _image(self, name: str) -> Result:
        decoder, text = json.JSONDecoder(), self._text("container-images.json")
        image, _ = decoder.raw_decode(text)
        if name in (*image["RepoTags"], *image["RepoDigests"]):
            return Result(0, json.dumps(image["RepoDigests"]).encode())
        return Result(1, b"[]\n", b"Error response from daemon: No such image")

    def _framework(self, image: str) -> Result:
        (report,) = json.loads(self._text("framework.json"))["images"]
        assert image.partition("@")[0].rpartition("/")[2] in report["reference"]
        return Result(report["rc"], report["output"].encode())

    def _unit(self, unit: str) -> Result:
        if unit == "nvidia-fabricmanager":
            state = systemd.parse(self._text("fabricmanager.txt")).state
        else:
            state = systemd.parse_units(self._text("units.txt"))[f"{unit}.service"].active
        return Result(0 if state == "active" else 3, state.encode())


@cache
def modules() -> tuple[ModuleType, ...]:
    """gpu_node, and the files of tests, under the names that pytest gives them."""
    loaded = []
    for file in (SUITE / "gpu_node.py", *sorted(SUITE.glob("test_*.py"))):
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        if file.stem == "gpu_node":
            sys.modules["gpu_node"] = module  # the tests import it by this name
        spec.loader.exec_module(module)
        loaded.append(module)
    return tuple(loaded)


def tests() -> Iterator[Callable[[Any], None]]:
    for module in modules():
        yield from (value for name, value in vars(module).items() if name.startswith("test_") and callable(value))


def run_suite(files: Mapping[str, str | Output], expected: Expected) -> dict[str, tuple[str, str]]:
    """Test → (passed, failed, xfailed or skipped; the reason)."""
    facts = json.loads(json.dumps(facts_of(expected)))
    node = modules()[0].Node(BundleHost(files), "node-0", facts)
    outcomes: dict[str, tuple[str, str]] = {}
    for test in tests():
        try:
            test(node)
            outcomes[test.__name__] = ("passed", "")
        except pytest.skip.Exception as skipped:
            outcomes[test.__name__] = ("skipped", str(skipped))
        except pytest.xfail.Exception as warned:
            outcomes[test.__name__] = ("xfailed", str(warned))
        except pytest.fail.Exception as failed:
            outcomes[test.__name__] = ("failed", str(failed))
    return outcomes


def with_outcome(outcomes: Mapping[str, tuple[str, str]], outcome: str) -> dict[str, str]:
    """Test → reason, of those that ended so."""
    return {name: reason for name, (ended, reason) in outcomes.items() if ended == outcome}


def condemning(files: Mapping[str, str | Output], expected: Expected) -> dict[str, str]:
    """The covered checks for which gpuprov condemns such a node, with their messages."""
    node = check_runner.NodeUnderTest("node-0", read(bundle(dict(files))), expected, None, "", None)
    peers = peers_by_node([node])["node-0"]
    results = [
        health.result(declared, check_runner.run(function, declared, node, peers).bounded())
        for function, declared in plain_checks()
        if declared.id in COVERED
    ]
    return {result.id: result.message for result in results if result.condemns}
