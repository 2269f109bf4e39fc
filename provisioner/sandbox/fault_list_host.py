"""Faults of the host: memory, disks, clock, services, packages, security. See fault_list.py for how one is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from provisioner.sandbox.fault_list import Commands, Fault, Json, _anywhere, _log, _nvidia


def _sourced(key: str) -> Callable[[Json], bool]:
    """Machines whose value in the catalogue has a source: on others nothing is expected, so nothing is found."""
    return lambda machine: key not in set(machine["unsourced"])


def _cloud(machine: Json) -> bool:
    return bool(machine["cloud"])


def _shell(text: str) -> Commands:
    return (("sh", "-ec", text),)


def _times(key: str, share: float) -> Callable[[Json, int], None]:
    def change(machine: Json, _gpu: int) -> None:
        machine[key] = type(machine[key])(machine[key] * share)

    return change


def _put(**values: Any) -> Callable[[Json, int], None]:
    return lambda machine, _gpu: machine.update(values)


def _used(share: float) -> Callable[[Json, int], None]:
    """The root disk is at least so full."""
    return lambda machine, _gpu: machine.update(root_used=max(share, machine.get("root_used", 0.0)))


def _dead_disk(machine: Json, _gpu: int) -> None:
    machine["disks"][0]["state"] = "dead"


def _disk_tells(**values: Any) -> Callable[[Json, int], None]:
    """What the first local disk says of its health."""

    def change(machine: Json, _gpu: int) -> None:
        machine["disks"][0].setdefault("smart", {}).update(values)

    return change


def _degraded(machine: Json, _gpu: int) -> None:
    failed, other = (disk["name"] for disk in machine["disks"][:2])
    machine["mdstat"] = (
        f"Personalities : [raid1] [raid0]\nmd0 : active raid1 {other}[1] {failed}[0](F)\n"
        "      937560128 blocks super 1.2 [2/1] [_U]\n\nunused devices: <none>\n"
    )


def _lost_disk(machine: Json, _gpu: int) -> None:
    machine["disks"].pop()


LISTEN = """import socket, signal
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("0.0.0.0", {port}))
s.listen()
signal.pause()"""
UNMOUNT = """import json, subprocess
places = json.load(open("/run/gpuprov-sandbox/mounts.json")).values()
assert places, "scratch is not mounted"
for place in places:
    subprocess.run(["/usr/local/sbin/umount", place], check=True)"""
INSTALLED = "sed -i '/^Package: {name}$/,/^$/{change}' /var/lib/dpkg/status"
"""What dpkg says is installed."""
UNFINISHED = r"""d=/run/gpuprov-sandbox/unfinished
mkdir -p $d/DEBIAN
printf 'Package: gpuprov-unfinished\nVersion: 1\nArchitecture: all\nMaintainer: gpuprov\nDescription: simulated\n' \
  >$d/DEBIAN/control
dpkg-deb --build $d $d.deb >/dev/null
dpkg --unpack $d.deb >/dev/null"""


def _listens(port: int) -> tuple[Commands, Commands]:
    unit = f"gpuprov-sandbox-port-{port}"
    program = ("systemd-run", "--quiet", f"--unit={unit}", "python3", "-c", LISTEN.format(port=port))
    # It is there when the port answers.
    wait = f"for i in $(seq 50); do python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}))' "
    return (program, *_shell(wait + "2>/dev/null && exit 0; sleep 0.1; done; exit 1")), (("systemctl", "stop", unit),)


DOCKER_OPEN, ENGINE_OPEN = _listens(2375), _listens(5555)
RELEASE = "/etc/os-release.gpuprov-fault"
SSH = "/etc/ssh/sshd_config.d/00-gpuprov-fault.conf"
THP = "/sys/kernel/mm/transparent_hugepage/enabled"

FAULTS: tuple[Fault, ...] = (
    Fault(
        "memory-short",
        "an eighth of the host's memory is gone",
        "host.memory",
        _sourced("memory_gib"),
        "memory that the catalogue has from a source",
        _times("memory_gib", 7 / 8),
    ),
    Fault(
        "cpus-missing",
        "a quarter of the processors are gone",
        "host.cpus",
        _sourced("vcpus"),
        "processors that the catalogue has from a source",
        _times("vcpus", 3 / 4),
    ),
    Fault(
        "kernel-oops-forgotten",
        "the kernel went on after an oops that its log has lost",
        "host.kernel_taint",
        _anywhere,
        "a Linux kernel",
        _put(tainted=12288 | 1 << 7),
    ),
    Fault(
        "driver-warning",
        "the kernel warns of the GPU driver's own state",
        "log.driver_warning",
        change=_log("WARNING: CPU: 3 PID: 4711 at nvidia/nv.c:5461 nvidia_dev_put_uuid+0x1a2/0x1c0 [nvidia]"),
    ),
    Fault(
        "clock-off",
        "the clock is twelve hours ahead",
        "host.clock_skew",
        _anywhere,
        "a clock",
        break_=_shell("echo 43200 >/etc/gpuprov-sandbox/clock"),
        mend=_shell("rm -f /etc/gpuprov-sandbox/clock"),
    ),
    Fault(
        "clock-unkept",
        "no time service keeps the clock",
        "host.time_sync",
        _anywhere,
        "a clock",
        _put(clock={"lost": True}),
    ),
    Fault("root-full", "the root disk is full", "storage.full", _anywhere, "a disk", _used(0.995)),
    Fault("root-filling", "the root disk is nearly full", "storage.root_space", _anywhere, "a disk", _used(0.93)),
    Fault(
        "tmp-full",
        "temporary files have no room, to the last byte",
        "storage.tmp",
        _anywhere,
        "a disk",
        break_=_shell(
            "mount -t tmpfs -o size=64k,mode=1777 gpuprov-fault /tmp; cat /dev/zero >/tmp/full 2>/dev/null || true"
        ),
        mend=(("umount", "/tmp"),),  # noqa: S108
    ),
    Fault(
        "tmp-readonly",
        "temporary files are on a filesystem that is read-only",
        "storage.readonly",
        _anywhere,
        "a disk",
        break_=_shell("mount -t tmpfs -o ro,size=1g,mode=1777 gpuprov-fault /tmp"),
        mend=(("umount", "/tmp"),),  # noqa: S108
    ),
    Fault(
        "system-changed",
        "the system says that it is another release than its packages are for",
        "os.release",
        _anywhere,
        "a system",
        break_=_shell(
            f"cp --dereference /etc/os-release {RELEASE}; sed -i 's/^VERSION_ID=.*/VERSION_ID=\"99\"/' /etc/os-release"
        ),
        mend=_shell(f"test ! -e {RELEASE} || mv {RELEASE} /etc/os-release"),
    ),
    Fault(
        "scratch-unmounted",
        "scratch is not mounted",
        "storage.scratch",
        lambda m: bool(m["disks"]),
        "local disks",
        break_=(("python3", "-c", UNMOUNT),),
        mend=(("systemctl", "restart", "gpuprov-scratch.service"),),
    ),
    Fault(
        "nvme-dead",
        "the kernel has given up one NVMe disk",
        "storage.nvme_state",
        lambda m: bool(m["disks"]),
        "local disks",
        _dead_disk,
    ),
    Fault(
        "nvme-warns",
        "one NVMe disk says that it is not reliable any more",
        "storage.nvme_state",
        lambda m: bool(m["disks"]),
        "local disks",
        _disk_tells(critical_warning=4),
    ),
    Fault(
        "nvme-worn",
        "one NVMe disk is at the end of its written life",
        "storage.nvme_wear",
        lambda m: bool(m["disks"]),
        "local disks",
        _disk_tells(percent_used=104),
    ),
    Fault(
        "nvme-lost",
        "one NVMe disk is gone from the bus",
        "storage.nvme_count",
        lambda m: bool(m["disks"]) and not {"local_nvme", "local_nvme.count"} & set(m["unsourced"]),
        "local disks, their number from a source",
        _lost_disk,
    ),
    Fault(
        "raid-degraded",
        "a mirror runs without one of its disks",
        "storage.raid",
        lambda m: len(m["disks"]) > 1,
        "two local disks",
        _degraded,
    ),
    Fault(
        "fstab-unmounted",
        "a filesystem of /etc/fstab is not mounted",
        "storage.fstab",
        _anywhere,
        "a disk",
        break_=_shell("echo 'tmpfs /mnt/gpuprov-fault tmpfs defaults 0 0' >>/etc/fstab"),
        mend=_shell("sed -i '/gpuprov-fault/d' /etc/fstab"),
    ),
    Fault(
        "root-open",
        "root has an empty password",
        "security.root_password",
        _anywhere,
        "a system",
        break_=(("passwd", "--quiet", "--delete", "root"),),
        mend=(("passwd", "--quiet", "--lock", "root"),),
    ),
    Fault(
        "nccl-replaced",
        "another NCCL is installed",
        "nccl.version",
        _nvidia,
        "an NVIDIA GPU",
        break_=_shell(INSTALLED.format(name="libnccl2", change="s/^Version: /&9/")),  # 92.30.4, by one digit
        mend=_shell(INSTALLED.format(name="libnccl2", change="s/^Version: 9/Version: /")),
    ),
    Fault(
        "package-replaced",
        "a package of the stack is another one",
        "packages.locked",
        _nvidia,
        "an NVIDIA GPU",
        break_=_shell(INSTALLED.format(name="nvidia-container-toolkit", change="s/^Version: /&99:/")),
        mend=_shell(INSTALLED.format(name="nvidia-container-toolkit", change="s/^Version: 99:/Version: /")),
    ),
    Fault("swap-on", "a swap file is on", "host.swap", _cloud, "a cloud", _put(swap=["/swap.img"])),
    Fault(
        "thp-always",
        "transparent huge pages are always used",
        "host.thp",
        _anywhere,
        "a kernel",
        break_=_shell(f"echo always >{THP}"),
        mend=_shell(f"echo madvise >{THP}"),
    ),
    Fault(
        "timer-off",
        "a timer of the system is switched off",
        "services.expected",
        _anywhere,
        "systemd",
        break_=(("systemctl", "--quiet", "disable", "--now", "apt-daily-upgrade.timer"),),
        mend=(("systemctl", "--quiet", "enable", "--now", "apt-daily-upgrade.timer"),),
    ),
    Fault(
        "unit-failed",
        "a service outside gpuprov has failed",
        "services.failed",
        _anywhere,
        "systemd",
        break_=_shell("systemd-run --quiet --wait --unit=gpuprov-sandbox-broken false || true"),
        mend=(("systemctl", "reset-failed", "gpuprov-sandbox-broken.service"),),
    ),
    Fault(
        "docker-dead",
        "docker is stopped",
        "container.runtime",
        _anywhere,
        "docker",
        break_=(("systemctl", "stop", "docker.socket", "docker.service"),),
        mend=(("systemctl", "start", "docker.service"),),
    ),
    Fault(
        "cdi-lost",
        "GPUs are not described to containers",
        "container.cdi",
        _nvidia,
        "an NVIDIA GPU",
        break_=(("rm", "-f", "/var/run/cdi/nvidia.yaml"),),
        mend=(("systemctl", "restart", "gpuprov-cdi.service"),),
    ),
    Fault(
        "dpkg-broken",
        "dpkg has unpacked a package and not configured it",
        "packages.unfinished",
        _anywhere,
        "dpkg",
        break_=_shell(UNFINISHED),
        mend=(("dpkg", "--purge", "gpuprov-unfinished"),),
    ),
    Fault(
        "reboot-pending",
        "a package waits for a reboot",
        "host.reboot_required",
        _anywhere,
        "a system",
        break_=_shell(
            "echo '*** System restart required ***' >/run/reboot-required; echo libc6 >/run/reboot-required.pkgs"
        ),
        mend=_shell("rm -f /run/reboot-required /run/reboot-required.pkgs"),
    ),
    Fault(
        "dns-broken",
        "no name server is set up",
        "host.dns",
        _anywhere,
        "a system",
        break_=_shell("cp /etc/resolv.conf /run/gpuprov-sandbox/resolv.conf; echo >/etc/resolv.conf"),
        mend=_shell("cat /run/gpuprov-sandbox/resolv.conf >/etc/resolv.conf"),
    ),
    Fault(
        "docker-tcp",
        "docker's port is open to the network, without TLS",
        "security.docker_tcp",
        _anywhere,
        "docker",
        break_=DOCKER_OPEN[0],
        mend=DOCKER_OPEN[1],
    ),
    Fault(
        "hostengine-exposed",
        "DCGM's host engine is open to the network",
        "security.hostengine_exposed",
        _anywhere,
        "DCGM",
        break_=ENGINE_OPEN[0],
        mend=ENGINE_OPEN[1],
    ),
    Fault(
        "ssh-password",
        "sshd takes passwords",
        "security.ssh_password",
        _cloud,
        "a cloud",
        break_=_shell(f"echo 'PasswordAuthentication yes' >{SSH}"),
        mend=_shell(f"rm -f {SSH}"),
    ),
    Fault(
        "crash-left",
        "a crashed kernel has left its dump",
        "host.crash",
        _anywhere,
        "a system",
        break_=_shell("mkdir -p /var/crash/202611211200"),
        mend=_shell("rmdir /var/crash/202611211200"),
    ),
)
