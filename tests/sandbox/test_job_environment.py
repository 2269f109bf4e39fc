"""Two Azure ND nodes whose GPUs and cards share no PCI bridge: verify and jobs get GPUDirect from the same settings,
on a plain image and on Azure's own, whose boot service writes /etc/nccl.conf anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from provisioner.sandbox import containers, faults
from tests.support.rehearsal import Done, Rehearsal, failing, unknown, wrongs

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]
TOPOLOGY = "/etc/gpuprov/nccl-topology.xml"
VENDOR = "NCCL_TOPO_FILE=/opt/microsoft/ndv4/topo.xml"


@pytest.fixture(params=["plain", "vendor-hpc"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Rehearsal, str]]:
    made = Rehearsal.of_example("azure-ndv4", tmp_path, count=2)
    document = yaml.safe_load(made.file.read_text())
    if request.param == "vendor-hpc":
        document["groups"]["train"] |= {"base": "vendor-hpc"}
        made.file.write_text(yaml.safe_dump(document, sort_keys=False))
    yield made, request.param
    made.down()


def transports(done: Done) -> set[str]:
    """The ways that channels between nodes took, by the report."""
    checks = [c for node in done.json["nodes"] for c in node["checks"] if c["id"] == "fabric.transport"]
    assert checks and all(isinstance(check["actual"], dict) for check in checks), checks
    found = [ways for check in checks for ways in check["actual"].values()]
    return {way for ways in found for way in ways if way.startswith("NET/")}


def on(made: Rehearsal, command: str) -> str:
    return containers.execute(made.container("train-0"), "sh", "-c", command, deadline=120)


def slow_card(made: Rehearsal) -> None:
    """Level stress works each card by itself with perftest, which role infiniband installed."""
    well = made.verify("--level", "stress", "--node", "train-0")
    states = {check["id"]: check["status"] for check in well.json["nodes"][0]["checks"]}
    assert (well.status, states["rdma.loopback"]) == (0, "pass"), wrongs(well)
    faults.inject(made.container("train-0"), "ib-card-slow")
    try:
        found = made.verify("--level", "stress", "--node", "train-0")
    finally:
        faults.clear(made.container("train-0"))
    assert failing(found.json) == {"train-0": {"rdma.loopback"}}, wrongs(found)


def test_a_healthy_azure_nd_group_is_healthy_and_jobs_run_as_verify_does(fleet: tuple[Rehearsal, str]) -> None:
    made, base = fleet
    first = made.up()
    assert first.status == 0, "\n".join([first.stderr, *wrongs(first)])
    assert failing(first.json) == {} and unknown(first.json) == {}, wrongs(first)
    assert transports(first) == {"NET/IB+GDR"}

    words = on(made, "cat /etc/gpuprov/docker-run").split()
    for path in ("/etc/nccl.conf", TOPOLOGY):
        assert f"--volume={path}:{path}:ro" in words
    conf = on(made, "cat /etc/nccl.conf").splitlines()
    assert conf.index(f"NCCL_TOPO_FILE={TOPOLOGY}") < len(conf)
    assert (VENDOR in conf) == (base == "vendor-hpc")
    image = "nvcr.io/nvidia/pytorch:25.10-py3"
    seen = on(
        made, f"docker run --rm --pull=never --entrypoint sh $(cat /etc/gpuprov/docker-run) {image} -c 'cat {TOPOLOGY}'"
    )
    assert "<system" in seen

    if base == "plain":
        slow_card(made)
    if base == "vendor-hpc":
        # What happens at a boot: the image's service writes the file anew, and empties it before.
        on(made, "systemctl restart sku-customizations.service")
        assert on(made, "cat /etc/nccl.conf").splitlines() == conf
    else:
        # The same nodes without the topology file: NCCL goes round by host memory, and verify says so.
        on(made, f"mv {TOPOLOGY} {TOPOLOGY}.gone && touch {TOPOLOGY}")
    again = made.verify("--level", "standard")
    if base == "plain":
        assert again.status == 1
        assert {check for found in failing(again.json).values() for check in found} == {"fabric.transport"}, wrongs(
            again
        )
        return
    assert (again.status, failing(again.json)) == (0, {}), wrongs(again)
    assert transports(again) == {"NET/IB+GDR"}
    second = made.up()
    assert (second.status, second.json["changes"]["configured"]) == (0, 0), second.stderr
