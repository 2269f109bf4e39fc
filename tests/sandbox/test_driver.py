"""The driver on a real node: moved and moved back, nouveau kept off, a reboot where nothing less will do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.node_mirror import Called, NodeMirror, moved
from tests.support.playbook import Played, play
from tests.support.sandbox_cluster import SandboxCluster, wrongs

pytestmark = [pytest.mark.sandbox, pytest.mark.shares("lone"), pytest.mark.begins(3)]

OTHER = "580.159.03"
NODE = "train-0"
STARTED = "systemctl show --property=UserspaceTimestamp --value"
TAGS = "base,nvidia_driver"


@pytest.fixture(scope="module")
def node(lone: SandboxCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeMirror]:
    """The node, with a mirror that has two drivers; as locked again in the end."""
    node_mirror = NodeMirror(lone, NODE, tmp_path_factory.mktemp("mirror"))
    node_mirror.serve(node_mirror.locked(), moved(node_mirror.locked(), OTHER))
    yield node_mirror
    node_mirror.shell("systemctl stop test-mirror", check=False)
    assert lone.up().status == 0


@pytest.fixture(autouse=True)
def healthy(node: NodeMirror) -> Iterator[None]:
    """The machine's description as it was, after each test."""
    yield
    node.shell("cp /etc/gpuprov-sandbox/healthy.json /etc/gpuprov-sandbox/hardware.json")


def change(node: NodeMirror, **machine: Any) -> None:
    """The machine has this too."""
    file = "/etc/gpuprov-sandbox/hardware.json"
    script = f"import json; m=json.load(open('{file}')); m.update({machine!r}); json.dump(m, open('{file}', 'w'))"
    node.shell(f'python3 -c "{script}"')


def reboot(node: NodeMirror) -> None:
    node.shell("systemctl reboot", check=False)
    node.wait_for_boot()
    node.start()


def configure(node: NodeMirror, stack: dict[str, Any], **variables: Any) -> Played:
    """The driver's roles by that stack; what another one brought and this one has not is known to be obsolete."""
    variables |= {"gpuprov_stack": node.here(stack), "gpuprov_obsolete": obsolete(node, stack)}
    return play(node.sandbox_cluster, limit=NODE, tags=TAGS, variables=variables)


def obsolete(node: NodeMirror, stack: dict[str, Any]) -> list[str]:
    """What the ledger of a cluster that had both stacks says."""
    both = (node.locked(), moved(node.locked(), OTHER))
    return sorted({p["name"] for s in both for p in s["packages"]} - {p["name"] for p in stack["packages"]})


def install(node: NodeMirror, stack: dict[str, Any], **arguments: Any) -> Called:
    """The packages of the driver alone, past the roles."""
    packages = [p for p in stack["packages"] if p["part"] in ("driver", "fabric_manager")]
    return node.call("locked_packages", packages=packages, absent=obsolete(node, stack), **arguments)


def version(node: NodeMirror) -> str:
    """What runs, asked in both ways that differ when a driver was moved under a loaded module."""
    reported_version = node.shell("nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u")
    assert reported_version == node.shell("cat /sys/module/nvidia/version")
    return reported_version


def test_moved_and_moved_back_without_a_reboot(node: NodeMirror) -> None:
    """The old module is loaded and its services run: they make way, and run again with the new one."""
    stack, started = node.locked(), node.shell(STARTED)
    for target in (OTHER, stack["driver"]):
        assert configure(node, moved(stack, target)).changed()[NODE] > 0
        assert version(node) == target
        units = "nvidia-persistenced nvidia-fabricmanager nvidia-dcgm nvidia-dcgm-exporter"
        assert node.shell(f"systemctl is-active {units} | sort -u") == "active"
    assert configure(node, stack).changed()[NODE] == 0
    assert node.shell(STARTED) == started
    assert f"nvidia-driver-pinning-{OTHER}" not in node.shell("dpkg-query -W -f '${Package}\n'")


@pytest.mark.slow
def test_a_module_that_does_not_go_is_a_reboot_that_the_run_survives(node: NodeMirror) -> None:
    stack, started = node.locked(), node.shell(STARTED)
    change(node, modules_stuck=["nvidia"])
    refused = configure(node, moved(stack, OTHER), nvidia_driver_reboot=False).failure(NODE)
    assert f"a reboot is needed: the module of driver {stack['driver']} is loaded and does not let itself" in refused
    done = configure(node, moved(stack, OTHER))
    assert done.changed()[NODE] > 0
    assert node.shell(STARTED) != started
    assert version(node) == OTHER
    change(node, modules_stuck=[])
    node.start()
    assert configure(node, stack).changed()[NODE] > 0
    assert version(node) == stack["driver"]


def test_a_job_at_work_is_not_disturbed(node: NodeMirror) -> None:
    stack = node.locked()
    holds = "--property=StandardInput=file:/dev/nvidia-test"
    node.shell(f"touch /dev/nvidia-test; systemd-run --quiet --unit test-job {holds} sleep 300")
    try:
        message = module(node, version=OTHER, check=False)
        assert "there is no NVIDIA module" in message  # nothing is installed yet
        assert install(node, moved(stack, OTHER)).changed
        message = module(node, version=OTHER)
        assert f"the module of driver {stack['driver']} is loaded" in message
        assert "sleep 300 (pid " in message
        assert "Drain the node" in message
        assert node.shell("systemctl is-active nvidia-persistenced test-job") == "active\nactive"
        assert node.shell("cat /sys/module/nvidia/version") == stack["driver"]
    finally:
        node.shell("systemctl stop test-job; rm -f /dev/nvidia-test")
        assert install(node, stack).changed
    assert version(node) == stack["driver"]


def module(node: NodeMirror, *, check: bool = True, **changes: Any) -> str:
    """The error of nvidia_module with other arguments."""
    stack = node.locked()
    right = {"version": stack["driver"], "flavour": stack["kernel_modules"], "kernel": node.shell("uname -r"),
             "deny_file": "/etc/modprobe.d/gpuprov-nvidia.conf", "others": ["nouveau"]}  # fmt: skip
    users = ["nvidia-dcgm-exporter", "nvidia-dcgm", "nvidia-fabricmanager", "nvidia-persistenced"]
    return str(node.call("nvidia_module", **{**right, "users": users, **changes}).message)


def test_what_does_not_fit_is_said(node: NodeMirror) -> None:
    release, driver = node.shell("uname -r"), node.locked()["driver"]
    assert f"the kernel moved: {release} runs, it was 6.8.0-1015-aws" in module(node, kernel="6.8.0-1015-aws")
    message = module(node, flavour="proprietary")
    assert f"the NVIDIA module for kernel {release} is the open one, the lock wants the proprietary one" in message
    node.shell(f"mv /lib/modules/{release}/build /lib/modules/{release}/away")
    message = module(node)
    assert f"there is no NVIDIA module {driver} for kernel {release} (none is installed)" in message
    assert f"install linux-headers-{release}" in message
    node.shell(f"mv /lib/modules/{release}/away /lib/modules/{release}/build")
    change(node, dkms={"broken": ["nvidia"]})
    message = module(node)
    assert "DKMS can't build it: nvidia/mmap.c:341:9: error: implicit declaration" in message


def test_without_headers_the_archive_is_asked_and_what_it_lacks_is_said(node: NodeMirror) -> None:
    release = node.shell("uname -r")
    node.shell(f"dpkg --purge linux-headers-{release}")
    assert "there is no NVIDIA module" in module(node)
    assert node.call("locked_packages", packages=[], kernel_headers=release).changed
    message = str(node.call("locked_packages", packages=[], kernel_headers="5.15.0-1019-aws").message)
    assert (
        "archive has no linux-headers-5.15.0-1019-aws, so DKMS can build no driver for the kernel that runs" in message
    )


def test_persistence_mode_is_on_after_a_boot(node: NodeMirror) -> None:
    """Although the vendor's unit says --no-persistence-mode, and StopWhenUnneeded."""
    reboot(node)
    assert node.shell("nvidia-smi --query-gpu=persistence_mode --format=csv,noheader | sort -u") == "Enabled"


def test_the_efa_module_that_runs_is_the_installed_one(node: NodeMirror) -> None:
    """A kernel has one of its own, and modprobe does nothing where a module of that name is loaded."""
    built = "/usr/lib/gpuprov-sandbox/installed/module-efa.json"
    load_kernels_module = f"mv {built} {built}.away; modprobe -r efa; modprobe efa; mv {built}.away {built}"
    ran, p2p = "cat /sys/module/efa/srcversion", "cat /sys/class/infiniband/*/device/p2p | sort -u"
    assert not node.call("efa_module").changed
    node.shell(load_kernels_module)
    assert node.shell(ran) != node.shell("modinfo -F srcversion efa")
    change(node, modules_stuck=["efa"])
    assert "another EFA module than the installed one runs and does not" in node.call("efa_module").result["reboot"]
    assert "the node was rebooted, and still another EFA" in node.call("efa_module", rebooted=True).message
    change(node, modules_stuck=[])
    assert node.call("efa_module").result["done"][-1] == "loaded the installed EFA module"
    assert (node.shell(ran), node.shell(p2p)) == (node.shell("modinfo -F srcversion efa"), "NVIDIA")


def test_huge_pages_are_efas(node: NodeMirror) -> None:
    node.shell("systemctl restart gpuprov-tuning")
    assert int(node.shell("cat /proc/sys/vm/nr_hugepages")) == 110 * 2 * 96 // 2 + 1


@pytest.mark.slow
def test_nouveau_makes_way_and_stays_away(node: NodeMirror) -> None:
    """A system that loads nouveau at boot: the role takes it out, and the initramfs keeps it out."""
    stack = node.locked()
    change(node, nouveau=True)
    node.shell("rm /etc/modprobe.d/gpuprov-nvidia.conf /boot/initrd.img-*")
    reboot(node)
    assert "nouveau" in node.shell("lsmod")
    assert "No such device" in node.shell("modprobe nvidia 2>&1", check=False)
    assert configure(node, stack).changed()[NODE] > 0
    assert "nouveau" not in node.shell("lsmod")
    assert "etc/modprobe.d/gpuprov-nvidia.conf" in node.shell("lsinitramfs /boot/initrd.img-$(uname -r)")
    assert version(node) == stack["driver"]
    reboot(node)
    assert "nouveau" not in node.shell("lsmod")
    assert configure(node, stack).changed()[NODE] == 0
    verdict = node.sandbox_cluster.verify()
    assert verdict.status == 0, wrongs(verdict)


@pytest.mark.slow
def test_nouveau_that_does_not_go_is_a_reboot(node: NodeMirror) -> None:
    stack = node.locked()
    change(node, nouveau=True, modules_stuck=["nouveau"])
    node.shell("rm /etc/modprobe.d/gpuprov-nvidia.conf /boot/initrd.img-*")
    reboot(node)
    started = node.shell(STARTED)
    assert configure(node, stack).changed()[NODE] > 0
    assert node.shell(STARTED) != started
    assert "nouveau" not in node.shell("lsmod")
    assert version(node) == stack["driver"]


def test_check_mode_of_a_move_touches_nothing(node: NodeMirror) -> None:
    check_result = install(node, moved(node.locked(), OTHER), _ansible_check_mode=True)
    assert check_result.changed
    assert json.dumps(OTHER)[1:-1] in check_result.result["diff"]["after"]
    assert version(node) == node.locked()["driver"]
