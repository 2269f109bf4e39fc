"""On every fault of the sandbox that it covers the exported suite of testinfra fails where gpuprov condemns, and on
every other one it passes. The tools are the simulated ones; what is a process or a file of a node stands in a table."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from provisioner.sandbox import faults
from provisioner.sandbox.node import state
from provisioner.verify.bundle import Output
from tests.support.acceptance_suite import COVERED, condemning, run_suite, with_outcome
from tests.support.healthy_bundle import DRIVER, REFERENCE, expected, healthy
from tests.support.sandbox_node import MakeNode, Node
from tests.support.sandbox_node import healthy as hardware

Texts = dict[str, str | Output]
MACHINES = ("p4d.24xlarge", "dgx-h100", "Standard_ND128isr_NDR_GB200_v6", "workstation-rtx4090", "amd-mi300x-node")
TOOLS = {
    "nvidia-smi.xml": ("nvidia-smi", "-q", "-x"), "nvlink.txt": ("nvidia-smi", "nvlink", "-s"),
    "topo.txt": ("nvidia-smi", "topo", "-m"), "lspci.txt": ("lspci", "-Dnnx"), "ibstat.txt": ("ibstat",),
    "fi_info.txt": ("fi_info", "-p", "efa"), "rocm-smi.json": ("rocm-smi", "--json"),
}  # fmt: skip
HUNG = Output("", rc=None, timed_out=True, seconds=60.0)
NO_DOCKER = Output("", rc=1, error="Cannot connect to the Docker daemon at unix:///var/run/docker.sock.")
ON_THE_NODE: dict[str, Texts] = {
    "nvidia-smi-hangs": {"nvidia-smi.xml": HUNG, "nvlink.txt": HUNG, "topo.txt": HUNG},
    "fabric-manager-dead": {"fabricmanager.txt": "   Active: failed (Result: signal) since Mon 2026-01-05 10:00:00\n"},
    "exporter-dead": {"dcgm-exporter.prom": Output("", rc=7, error="[Errno 111] Connection refused")},
    "wrong-image": {
        "container-images.json": json.dumps({"Id": "sha256:22", "RepoTags": [REFERENCE], "RepoDigests": []})
    },
    "docker-dead": {"container-images.json": NO_DOCKER},
}
"""What the fault is a process or a file of, and how the outputs of such a node read."""
EDITS = {
    "nccl-replaced": ("packages.txt", "libnccl2\t2", "libnccl2\t92"),
    "package-replaced": ("packages.txt", "cuda-toolkit-13-0\t13", "cuda-toolkit-13-0\t99:13"),
    "imex-stopped": ("units.txt", "Id=nvidia-imex.service\nLoadState=loaded\nActiveState=active",
                     "Id=nvidia-imex.service\nLoadState=loaded\nActiveState=inactive"),
}  # fmt: skip
"""Output → what it has of a healthy node, and with the fault."""
IMAGES = ("wrong-image", "docker-dead")
ALSO = {"ecc-off": "gpu.ecc", "docker-dead": "container.runtime"}
"""Faults that the suite finds though it covers their check in part alone."""


def outputs(node: Node, machine: str) -> Texts:
    """The bundle of a healthy node, with what the simulated tools of this one say."""
    texts = healthy(machine)
    for name, (tool, *arguments) in TOOLS.items():
        if name in texts:
            code, out, err = node.run(tool, *arguments, version=DRIVER)
            texts[name] = Output(out, rc=code, error=err)
    if "rdma.json" in texts and (nics := state.hardware()["nics"]):
        document = json.loads(str(texts["rdma.json"]))
        (row, *_), places = document["devices"].values(), {nic["name"]: nic.get("slot", "") for nic in nics}
        texts["rdma.json"] = json.dumps(document | {"devices": {n: row | {"pci": p} for n, p in places.items()}})
    return texts


def plain(texts: Texts) -> dict[str, object]:
    """The outputs without what differs at any two times."""
    rows = {name: text if isinstance(text, Output) else Output(text) for name, text in texts.items()}
    return {name: (text.rc, text.error, re.sub("<timestamp>.*", "", text.text)) for name, text in rows.items()}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_suite_fails_where_gpuprov_condemns(make_node: MakeNode, machine: str) -> None:
    """One node for all faults: to make one takes most of the time."""
    machine_state = hardware(machine)
    gpu, nvidia = min(3, len(machine_state["gpus"]) - 1), machine_state["vendor"] == "nvidia"
    desired = replace(expected(machine), driver=DRIVER if nvidia else None)
    node, disagreeing, covered = make_node(machine, DRIVER if nvidia else None), [], 0
    node.install("doca-ofed", f"{DRIVER}-1")
    modules = state.modules
    node.monkeypatch.setattr(state, "modules", lambda: modules() | {"efa": {"version": None}})
    healthy_outputs = plain(outputs(node, machine))
    assert condemning(outputs(node, machine), desired) == {}
    assert with_outcome(run_suite(outputs(node, machine), desired), "failed") == {}
    for fault in faults.list_faults(machine):
        if fault.name != "nvidia-smi-hangs":
            node.become(faults.with_faults(machine_state, [faults.Active(fault.name, gpu)], DRIVER if nvidia else None))
        texts = outputs(node, machine) | ON_THE_NODE.get(fault.name, {})
        node.become(machine_state)
        if fault.name in EDITS:
            name, intact, broken = EDITS[fault.name]
            assert intact in str(texts[name])
            texts[name] = str(texts[name]).replace(intact, broken)
        is_covered = (fault.check in COVERED or fault.name in ALSO) and not (
            fault.name in IMAGES and not desired.images
        )
        if plain(texts) == healthy_outputs:
            assert not is_covered, fault.name
            continue
        covered += is_covered
        condemned, outcomes = condemning(texts, desired), run_suite(texts, desired)
        failed, warned = with_outcome(outcomes, "failed"), with_outcome(outcomes, "xfailed")
        if bool(condemned or (is_covered and fault.name in ALSO)) != bool(failed) or is_covered != bool(
            failed or warned
        ):
            disagreeing.append(f"{fault.name} ({fault.check}): gpuprov {condemned}, suite {failed or warned}")
    assert not disagreeing, "\n".join(disagreeing)
    assert covered


def test_every_covered_fault_is_tried() -> None:
    tried = {fault.name for machine in MACHINES for fault in faults.list_faults(machine)}
    assert {fault.name for fault in faults.FAULTS if fault.check in COVERED} <= tried
