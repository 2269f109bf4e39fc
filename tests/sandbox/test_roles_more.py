"""Network, storage, containers, monitoring, MIG and ROCm on real nodes: what each role does, keeps, and refuses."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from provisioner.sandbox import fault_list_cloud, faults
from provisioner.sandbox.node import smi_mig, storage
from tests.support import inside
from tests.support.playbook import play
from tests.support.sandbox_cluster import SandboxCluster, failing, wrongs

pytestmark = [pytest.mark.sandbox, pytest.mark.begins(7)]

CLUSTER = """
name: {name}
sites:
  virginia: {{provider: aws, region: us-east-1}}
  texas: {{provider: azure, region: southcentralus}}
  lab: {{provider: baremetal, method: ssh}}
groups:
  cut:
    {{site: virginia, machine: p4d.24xlarge, count: 1, storage: {{scratch: /scratch}}, gpu: {{mig: 1g.5gb}},
      capacity: {{kind: spot}}}}
  fabric: {{site: texas, machine: Standard_ND96asr_v4, count: 1, storage: {{scratch: /mnt/scratch}}}}
  red: {{site: lab, machine: amd-mi300x-node, count: 1}}
stack: {{ofed: "3.2.3", gdrcopy: "2.6"}}
hooks:
  interrupted: 'echo "$GPUPROV_NODE {{{{ 7 }}}} $GPUPROV_ACTION $GPUPROV_TIME" | tee -a /run/interrupted; id -un'
"""
TAGS = "infiniband,efa,gpudirect,scratch,mig,rocm,container_runtime,dcgm_exporter,pytorch_images,interruption"
SCRAPE = "curl -sf $(ss -Htln 'sport = :9400' | awk '{print $4}')/metrics"
"""Of the DCGM exporter, where it listens."""
METRICS = "/var/lib/prometheus/node-exporter/gpuprov-interruption.prom"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxCluster]:
    """A p4d with MIG and scratch, an NDv4 with DOCA and GDRCopy, a machine with MI300X."""
    folder = tmp_path_factory.mktemp("roles")
    sandbox_cluster = SandboxCluster(folder / "cluster.yaml", f"t-roles-{os.getpid() % 10_000}")
    sandbox_cluster.file.write_text(CLUSTER.format(name=sandbox_cluster.name))
    try:
        sandbox_cluster.first = sandbox_cluster.up()
        yield sandbox_cluster
    finally:
        sandbox_cluster.down()


def shell(fleet: SandboxCluster, node: str, script: str, *, stdin: str = "") -> str:
    """Run a script as root in the node; asserts that it ends well."""
    done = inside.run(fleet.container(node), "sh", "-ec", script, stdin=stdin)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def reboot(fleet: SandboxCluster, *nodes: str) -> None:
    """Stop and start nodes, until every unit of theirs is up again."""
    names = [fleet.container(node) for node in nodes]
    subprocess.run(["podman", "restart", "--time", "10", *names], capture_output=True, timeout=120, check=True)
    # Nothing at all before the bus is there, then "starting".
    wait = "for i in $(seq 300); do s=$(systemctl is-system-running 2>&1 || :); "
    wait += "case $s in running|degraded) break;; esac; sleep 0.2; done"
    for node in nodes:
        assert shell(fleet, node, f"{wait}; echo $s; systemctl --failed --no-legend") == "running"


def stack(fleet: SandboxCluster, group: str) -> dict[str, Any]:
    inventory = fleet.inventory()
    group_stack: dict[str, Any] = inventory["all"]["children"][group]["vars"]["gpuprov_stack"]
    return group_stack


@contextmanager
def hardware(fleet: SandboxCluster, node: str, **changes: Any) -> Iterator[None]:
    """The node's hardware.json with these keys, for as long as it lasts."""
    fault = "/usr/lib/gpuprov-sandbox/fault"
    healthy = json.loads(shell(fleet, node, f"{fault} show"))["healthy"]
    shell(fleet, node, f"{fault} write", stdin=json.dumps({**healthy, **changes}))
    try:
        yield
    finally:
        shell(fleet, node, f"{fault} write", stdin=json.dumps(healthy))


def mig_devices(fleet: SandboxCluster, profile: str) -> int:
    return shell(fleet, "cut-0", "nvidia-smi -L").count(f"  MIG {profile} ")


def test_all_are_healthy(fleet: SandboxCluster) -> None:
    assert fleet.first is not None
    assert fleet.first.status == 0, (wrongs(fleet.first), fleet.first.stderr[-3000:])


@pytest.mark.slow
def test_a_second_run_changes_nothing(fleet: SandboxCluster) -> None:
    assert play(fleet, tags=TAGS).changed() == {"cut-0": 0, "fabric-0": 0, "red-0": 0}
    # What docker knows is asked of docker: this one does not know the setting for CDI.
    assert "cdi" not in shell(fleet, "cut-0", "cat /etc/docker/daemon.json")


def test_a_reboot_keeps_scratch_and_lays_mig_out_again(fleet: SandboxCluster) -> None:
    shell(fleet, "cut-0", "echo kept >/scratch/file")
    reboot(fleet, "cut-0")
    assert shell(fleet, "cut-0", "cat /scratch/file; findmnt -no TARGET /scratch") == "kept\n/scratch"
    assert mig_devices(fleet, "1g.5gb") == 56
    assert "nvidia.com/gpu=7:6" in shell(fleet, "cut-0", "nvidia-ctk cdi list")
    assert "DCGM_FI_DEV_ROW_REMAP_FAILURE" in shell(
        fleet,
        "cut-0",
        f"for i in $(seq 50); do {SCRAPE} && exit; sleep 0.2; done; exit 1",
    )
    # A cloud gives instance store back empty after a stop.
    shell(fleet, "cut-0", f"rm /{storage.CONTENT}")
    reboot(fleet, "cut-0")
    assert shell(fleet, "cut-0", "ls -A /scratch; findmnt -no TARGET /scratch; stat -c %a /scratch") == "/scratch\n1777"


def test_the_exporter_has_no_power_and_asks_dcgm(fleet: SandboxCluster) -> None:
    output = shell(
        fleet, "fabric-0", "systemctl show nvidia-dcgm-exporter -p DynamicUser -p NoNewPrivileges -p ProtectSystem -p "
        "CapabilityBoundingSet; ps -o user= -p $(systemctl show -P MainPID nvidia-dcgm-exporter)"
    )  # fmt: skip
    assert "DynamicUser=yes" in output
    assert "ProtectSystem=strict" in output
    assert "NoNewPrivileges=yes" in output
    assert "CapabilityBoundingSet=\n" in output
    assert "root" not in output
    # It is not there without the host engine, comes back with it, and starts again by itself when it dies.
    pid = shell(fleet, "fabric-0", "systemctl show -P MainPID nvidia-dcgm-exporter")
    shell(fleet, "fabric-0", f"kill -9 {pid}")
    wait = f"for i in $(seq 100); do {SCRAPE} >/dev/null && exit; sleep 0.2; done; exit 1"
    shell(fleet, "fabric-0", wait)


def test_gpus_stay_in_a_running_container(fleet: SandboxCluster) -> None:
    """`systemctl daemon-reload` takes the GPUs of a container where systemd does not know the devices."""
    image = stack(fleet, "fabric")["images"][0]["reference"]
    list_gpus = "docker exec job cat /etc/gpuprov-sandbox/gpus"
    shell(fleet, "fabric-0", f"docker run --detach --name job --gpus all --entrypoint sleep {image} 600")
    try:
        assert shell(fleet, "fabric-0", f"{list_gpus}; systemctl daemon-reload; {list_gpus}") == "8\n8"
        # That this would be seen: without the links the same reload does take them.
        shell(fleet, "fabric-0", "rm /dev/char/195:*; systemctl daemon-reload")
        assert shell(fleet, "fabric-0", f"{list_gpus} 2>&1 || :").endswith("No such file or directory")
    finally:
        shell(fleet, "fabric-0", "docker rm --force job; systemctl restart gpuprov-cdi.service")
    assert "195:0" in shell(fleet, "fabric-0", "ls /dev/char")


@pytest.mark.slow
def test_other_layouts_and_ways(fleet: SandboxCluster) -> None:
    """Another MIG layout, none, and back; nvidia-peermem where dma-buf can't be, over a reboot, and back."""
    shell(fleet, "cut-0", "gpuprov-mig --profile 3g.20gb --instances 2 --gpus 8")
    assert mig_devices(fleet, "3g.20gb") == 16
    other = {
        "gpuprov_mig": None,
        "gpuprov_mig_instances": 0,
        "gpuprov_stack": {**stack(fleet, "fabric"), "kernel_modules": "proprietary"},
    }
    done = play(fleet, limit="cut-0,fabric-0", tags="mig,gpudirect", variables=other).changed()
    assert min(done.values()) > 0
    assert json.loads(shell(fleet, "fabric-0", "cat /etc/gpuprov/gpudirect.json"))["way"] == "peermem"
    reboot(fleet, "cut-0", "fabric-0")
    assert "MIG" not in shell(fleet, "cut-0", "nvidia-smi -L")
    assert "gpuprov-mig" not in shell(fleet, "cut-0", "ls /etc/systemd/system")
    assert {"nvidia_peermem", "gdrdrv"} <= set(shell(fleet, "fabric-0", "lsmod").split())
    done = play(fleet, limit="cut-0,fabric-0", tags="mig,gpudirect").changed()
    assert min(done.values()) > 0
    assert mig_devices(fleet, "1g.5gb") == 56
    assert shell(fleet, "cut-0", "systemctl is-active nvidia-dcgm nvidia-dcgm-exporter") == "active\nactive"
    gpudirect = json.loads(shell(fleet, "fabric-0", "cat /etc/gpuprov/gpudirect.json"))
    assert (gpudirect["way"], gpudirect["modules"]) == ("dmabuf", ["gdrdrv"])


def test_missing_devices_and_modules_are_refused(fleet: SandboxCluster) -> None:
    healthy = json.loads(shell(fleet, "cut-0", "cat /etc/gpuprov-sandbox/healthy.json"))
    amd = json.loads(shell(fleet, "red-0", "cat /etc/gpuprov-sandbox/healthy.json"))
    amd["gpus"][3]["present"] = False
    with (
        hardware(fleet, "cut-0", efa=healthy["efa"][:3]),
        hardware(fleet, "fabric-0", dkms={"broken": ["mlnx-ofed-kernel"]}),
        hardware(fleet, "red-0", gpus=amd["gpus"]),
    ):
        done = play(fleet, tags="efa,infiniband,rocm")
    assert "libfabric finds 3 EFA devices, this machine type has 4" in done.failure("cut-0")
    assert "mlnx-ofed-kernel is not built for kernel" in done.failure("fabric-0")
    # The MI300X machine has DOCA too, which does build there.
    assert "rocm-smi lists 7 GPUs, this machine type has 8" in done.failure("red-0")


def test_wrong_disks_and_a_clashing_mpi_are_refused(fleet: SandboxCluster) -> None:
    previous_content = shell(fleet, "cut-0", f"cat /{storage.CONTENT}")
    control = (
        "Package: openmpi-bin\nVersion: 4.1.4-3\nArchitecture: all\nMaintainer: t <t@t.internal>\nDescription: t\n"
    )
    build = "mkdir -p /tmp/d/DEBIAN; cat >/tmp/d/DEBIAN/control; dpkg-deb -b /tmp/d /tmp/d.deb; dpkg -i /tmp/d.deb"
    shell(fleet, "fabric-0", build, stdin=control)
    try:
        done = play(fleet, limit="cut-0,fabric-0", tags="scratch,infiniband", variables={"gpuprov_local_nvme": 9})
    finally:
        shell(fleet, "fabric-0", "dpkg --purge openmpi-bin")
    assert "scratch consists of 9 disks, and 8 of them are there" in done.failure("cut-0")
    assert shell(fleet, "cut-0", f"cat /{storage.CONTENT}") == previous_content
    assert "clashes with what is there: openmpi-bin 4.1.4-3" in done.failure("fabric-0")


def test_a_job_keeps_its_gpus_and_images_are_only_what_the_lock_says(fleet: SandboxCluster) -> None:
    locked = stack(fleet, "fabric")
    image, missing_digest = locked["images"][0], "sha256:" + "0" * 64
    name = image["pull"].partition("@")[0]
    images = [
        {**image, "digest": missing_digest},
        {**image, "reference": "gone:1", "digest": missing_digest, "pull": f"{name}@{missing_digest}"},
        {
            **image,
            "reference": "far:1",
            "digest": missing_digest,
            "pull": f"mirror.gpuprov.internal:5999/far@{missing_digest}",
        },
    ]
    pid = shell(fleet, "cut-0", "sleep 300 >/dev/null 2>&1 & echo $!")
    users = json.dumps([{"gpu": 3, "pid": int(pid), "name": "python3"}])
    shell(fleet, "cut-0", f"cat >/{smi_mig.USERS}", stdin=users)
    # A tag that stands on something else is put right.
    shell(fleet, "fabric-0", f"docker tag {image['pull']} other:1; docker rmi {image['reference']}")
    variables = {"gpuprov_mig": "3g.20gb", "gpuprov_mig_instances": 2, "pytorch_images_attempts": 1}
    try:
        stack_of_others = {"gpuprov_stack": {**locked, "images": images}}
        done = play(fleet, limit="cut-0,fabric-0", tags="mig,pytorch_images", variables=variables | stack_of_others)
    finally:
        shell(fleet, "cut-0", f"kill {pid}; rm /{smi_mig.USERS}")
    assert f"python3 (pid {pid})" in done.failure("cut-0")
    assert mig_devices(fleet, "1g.5gb") == 56
    message = done.failure("fabric-0")
    assert f"{image['reference']}: the lock says digest {missing_digest} and pulls" in message
    assert "gone:1: the registry does not have this digest any more" in message
    assert "far:1: the registry can't be reached from the node" in message
    assert play(fleet, limit="fabric-0", tags="pytorch_images").changed() == {"fabric-0": 1}
    same = f"docker image inspect -f '{{{{.Id}}}}' {image['reference']} {image['pull']}"
    assert len(set(shell(fleet, "fabric-0", same).split())) == 1


NOTED = "/run/gpuprov/interruption.json"


def noted(fleet: SandboxCluster) -> dict[str, Any]:
    """What cut-0's watcher wrote down."""
    record: dict[str, Any] = json.loads(shell(fleet, "cut-0", f"cat {NOTED}"))
    return record


def test_a_spot_notice_runs_the_hook_once_and_the_node_is_not_handed_over(fleet: SandboxCluster) -> None:
    faults.inject(fleet.container("cut-0"), "spot-notice")
    try:
        record = noted(fleet)
        when = record["notice"]["time"]
        line = f"cut-0 {{{{ 7 }}}} terminate {when}"
        assert (record["hook"]["result"], record["hook"]["output"]) == ("success", [line, "root"])
        # Neither a restart nor an end that nobody wanted runs it again; systemd starts the watcher again by itself.
        pid = "systemctl show -P MainPID gpuprov-interruption"
        shell(fleet, "cut-0", "systemctl restart gpuprov-interruption")
        shell(
            fleet, "cut-0", f"was=$({pid}); kill -9 $was; for i in $(seq 100); do now=$({pid}); "
            "case $now in 0|$was) sleep 0.1;; *) exit;; esac; done; exit 1"
        )  # fmt: skip
        assert shell(fleet, "cut-0", "cat /run/interrupted") == line
        verdict = fleet.verify("--level", "quick", "--node", "cut-0")
        assert (verdict.status, failing(verdict.json)) == (1, {"cut-0": {"cloud.interruption"}})
        assert f"terminate at {when}" in "".join(wrongs(verdict))
    finally:
        faults.clear(fleet.container("cut-0"), "spot-notice")
    assert failing(fleet.verify("--level", "quick", "--node", "cut-0").json) == {}


@pytest.mark.slow
def test_a_hook_that_does_not_end_is_ended_before_the_machine(fleet: SandboxCluster) -> None:
    """Another hook is a difference that the role alone mends; the watcher goes where nobody takes machines away."""
    group_variables = fleet.inventory()["all"]["children"]["cut"]["vars"]
    hook = base64.b64encode(b"echo begins; sleep 300\n").decode()
    other = {"gpuprov_interruption": {**group_variables["gpuprov_interruption"], "hook": hook, "textfile": METRICS}}
    assert play(fleet, limit="cut-0", tags="interruption", variables=other).changed() == {"cut-0": 3}
    assert shell(fleet, "cut-0", "stat -c %a%U /etc/gpuprov/interrupted") == "600root"
    drift = {n["name"]: n["drift"] for n in fleet.run("status", fleet.file, "--json").json["nodes"]}
    assert [(d["kind"], d["subject"]) for d in drift["cut-0"]] == [("hook", "hooks.interrupted")]
    # The machine goes in 22 s: the hook has the least that any gets, 5.
    start = "cat >/run/t-imds.py; systemd-run --quiet --unit=t-imds python3 /run/t-imds.py"
    shell(fleet, "cut-0", start, stdin=fault_list_cloud.METADATA.replace("+ 120", "+ 22"))
    try:
        ended = f"""grep -q '"state": "ended"' {NOTED}"""
        shell(fleet, "cut-0", f"for i in $(seq 200); do {ended} && exit; sleep 0.2; done; exit 1")
        assert (noted(fleet)["hook"]["result"], noted(fleet)["hook"]["output"]) == ("timeout", ["begins"])
        assert shell(fleet, "cut-0", "pgrep -fx 'sleep 300' || :") == ""
        assert "gpuprov_interruption_hook_ok 0" in shell(fleet, "cut-0", f"cat {METRICS}")
        played = play(fleet, limit="cut-0", tags="base,interruption", variables={"gpuprov_interruption": None})
        assert played.changed() == {"cut-0": 1}
        assert shell(fleet, "cut-0", "systemctl is-active gpuprov-interruption || :") == "inactive"
        assert shell(fleet, "cut-0", "systemctl is-enabled gpuprov-interruption || :") == "disabled"
    finally:
        shell(
            fleet, "cut-0", f"systemctl stop t-imds gpuprov-interruption; rm -f {NOTED}; "
            "systemctl reset-failed gpuprov-interrupted || :"
        )  # fmt: skip
        play(fleet, limit="cut-0", tags="interruption")
    assert noted(fleet)["notice"] is None
    drift = {n["name"]: n["drift"] for n in fleet.run("status", fleet.file, "--json").json["nodes"]}
    assert drift["cut-0"] == []
