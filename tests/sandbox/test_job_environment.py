"""Two Azure ND nodes whose GPUs and cards share no PCI bridge: verify and jobs get GPUDirect from the same settings,
on a plain image and on Azure's own, whose boot service writes /etc/nccl.conf anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from provisioner.sandbox import containers, faults
from tests.support.sandbox_cluster import Done, SandboxCluster, failing, unknown, wrongs

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]
TOPOLOGY = "/etc/gpuprov/nccl-topology.xml"
VENDOR = "NCCL_TOPO_FILE=/opt/microsoft/ndv4/topo.xml"


@pytest.fixture(params=["plain", "vendor-hpc"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[SandboxCluster, str]]:
    sandbox_cluster = SandboxCluster.of_example("azure-ndv4", tmp_path, count=2)
    document = yaml.safe_load(sandbox_cluster.file.read_text())
    if request.param == "vendor-hpc":
        document["groups"]["train"] |= {"base": "vendor-hpc"}
        sandbox_cluster.file.write_text(yaml.safe_dump(document, sort_keys=False))
    yield sandbox_cluster, request.param
    sandbox_cluster.down()


def transports(done: Done) -> set[str]:
    """The ways that channels between nodes took, by the report."""
    checks = [c for node in done.json["nodes"] for c in node["checks"] if c["id"] == "fabric.transport"]
    assert checks and all(isinstance(check["actual"], dict) for check in checks), checks
    actual_transports = [names for check in checks for names in check["actual"].values()]
    return {name for names in actual_transports for name in names if name.startswith("NET/")}


def on(sandbox_cluster: SandboxCluster, command: str) -> str:
    return containers.execute(sandbox_cluster.container("train-0"), "sh", "-c", command, deadline=120)


def slow_card(sandbox_cluster: SandboxCluster) -> None:
    """Level stress works each card by itself with perftest, which role infiniband installed."""
    well = sandbox_cluster.verify("--level", "stress", "--node", "train-0")
    states = {check["id"]: check["status"] for check in well.json["nodes"][0]["checks"]}
    assert (well.status, states["rdma.loopback"]) == (0, "pass"), wrongs(well)
    faults.inject(sandbox_cluster.container("train-0"), "ib-card-slow")
    try:
        verdict = sandbox_cluster.verify("--level", "stress", "--node", "train-0")
    finally:
        faults.clear(sandbox_cluster.container("train-0"))
    assert failing(verdict.json) == {"train-0": {"rdma.loopback"}}, wrongs(verdict)


def test_a_healthy_azure_nd_group_is_healthy_and_jobs_run_as_verify_does(fleet: tuple[SandboxCluster, str]) -> None:
    sandbox_cluster, base = fleet
    first = sandbox_cluster.up()
    assert first.status == 0, "\n".join([first.stderr, *wrongs(first)])
    assert failing(first.json) == {} and unknown(first.json) == {}, wrongs(first)
    assert transports(first) == {"NET/IB+GDR"}

    arguments = on(sandbox_cluster, "cat /etc/gpuprov/docker-run").split()
    for path in ("/etc/nccl.conf", TOPOLOGY):
        assert f"--volume={path}:{path}:ro" in arguments
    conf = on(sandbox_cluster, "cat /etc/nccl.conf").splitlines()
    assert conf.index(f"NCCL_TOPO_FILE={TOPOLOGY}") < len(conf)
    assert (VENDOR in conf) == (base == "vendor-hpc")
    image = "nvcr.io/nvidia/pytorch:25.10-py3"
    topology_text = on(
        sandbox_cluster,
        f"docker run --rm --pull=never --entrypoint sh $(cat /etc/gpuprov/docker-run) {image} -c 'cat {TOPOLOGY}'",
    )
    assert "<system" in topology_text

    if base == "plain":
        slow_card(sandbox_cluster)
    if base == "vendor-hpc":
        # What happens at a boot: the image's service writes the file anew, and empties it before.
        on(sandbox_cluster, "systemctl restart sku-customizations.service")
        assert on(sandbox_cluster, "cat /etc/nccl.conf").splitlines() == conf
    else:
        # The same nodes without the topology file: NCCL goes round by host memory, and verify says so.
        on(sandbox_cluster, f"mv {TOPOLOGY} {TOPOLOGY}.gone && touch {TOPOLOGY}")
    verdict = sandbox_cluster.verify("--level", "standard")
    if base == "plain":
        assert verdict.status == 1
        assert {check for check_names in failing(verdict.json).values() for check in check_names} == {
            "fabric.transport"
        }, wrongs(verdict)
        return
    assert (verdict.status, failing(verdict.json)) == (0, {}), wrongs(verdict)
    assert transports(verdict) == {"NET/IB+GDR"}
    second = sandbox_cluster.up()
    assert (second.status, second.json["changes"]["configured"]) == (0, 0), second.stderr
