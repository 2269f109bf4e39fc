"""Services, packages beside the lock's versions, and what waits for a reboot."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from provisioner.common.text import few
from provisioner.verify.check import check, fail, note, saw, skip, unknown
from provisioner.verify.checks.host import NEEDS, host_of, reported
from provisioner.verify.checks.unread import end_unread
from provisioner.verify.expectations import IMEX, Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.kernel import newest_kernel
from provisioner.verify.parsers.systemd import JOB_SERVICES, Unit

ELSEWHERE = frozenset(
    ("nvidia-dcgm-exporter.service", "nvidia-fabricmanager.service", "nvidia-persistenced.service", "docker.service",
     "docker.socket", "containerd.service", "gpuprov-scratch.service", "gpuprov-cdi.service", "gpuprov-mig.service",
     "nvidia-imex.service", "gpuprov-interrupted.service")
)  # fmt: skip
"""Units whose not running is another check's finding: dcgm.exporter, nvswitch.fabric, gpu.persistence,
container.runtime, storage.scratch, container.cdi, gpu.mig, services.imex, cloud.interruption."""
WITHOUT_LOCK = ("docker.service", "docker.socket")
"""Those of which another check tells without a lock too (container.runtime)."""
NEEDED = (
    "*.mount", "*.automount", "containerd*", "docker*", "podman*", "gpuprov-*", "kubelet*", "lustre*", "lnet*",
    "munge*", "nfs*", "nvidia*", "nvsm*", "openibd*", "rdma*", "slurmd*", "ssh*", "chrony*", "systemd-timesyncd*",
    "wekafs*", "gpfs*", "beegfs*", "ceph*", "amdgpu*", "rocm*", "ibacm*", "opensm*", "srp_daemon*", "multipathd*",
    "mdadm*",
)  # fmt: skip
"""Units that a job may need. Others (fwupd-refresh, systemd-networkd-wait-online, apt-daily …) fail on healthy nodes
without a way out of their network or with a port that is not used."""
AT_BOOT = ("enabled", "enabled-runtime", "static", "alias", "indirect", "generated", "linked")
"""Unit file states (systemctl(1), is-enabled) of what starts at boot, or by what needs it."""


@check(
    "services.expected",
    severity="warn",
    action="reconfigure",
    reads=("units.txt",),
    follows=("services.imex",),
    applies=lambda e: e.units or e.own_units,
    otherwise="neither a lock nor the machine type names what should run",
    lock="which services have to run is the lock's to say",
    without_lock="fabric manager and IMEX that run and would not after a reboot",
    says="A service that the node needs does not run, or would not start after a reboot. `gpuprov up` starts it.",
)
def test_expected(node: Facts, expected: Expected) -> None:
    units, wrong = _units(node, expected), []
    if expected.units is None:
        _started_at_boot(units, expected)
        return
    for name in expected.units_on(node.bus.nvswitches if node.bus else None):
        unit = units.get(name)
        if unit is None:
            wrong.append(f"{name}: no such unit reported")
        elif unit.load != "loaded":
            wrong.append(f"{name} is {unit.load}")
        elif unit.active != "active" and name not in ELSEWHERE:
            wrong.append(f"{name} is {unit.active}")
        elif unit.enabled not in AT_BOOT:
            wrong.append(f"{name} runs, but is {unit.enabled or 'unknown'} at boot")
    saw(expected=f"{len(expected.units or ())} units active and enabled", actual=wrong or "all")
    if wrong:
        fail("; ".join(wrong[:4]))


def _units(node: Facts, expected: Expected) -> Mapping[str, Unit]:
    """What systemd says of the units that were asked for."""
    if node.units is None:
        reason = "no lock, and systemd was not asked for its units"
        end_unread(node, "units.txt", skips=None if expected.units else reason)
    return node.units


def _started_at_boot(units: Mapping[str, Unit], expected: Expected) -> None:
    """Without a lock: what the machine type itself needs and runs now (nvswitch.fabric, services.imex) has to run after
    a reboot too."""
    own_units = {name: unit for name in expected.own_units if (unit := units.get(name)) is not None}
    active = {name: unit.enabled for name, unit in own_units.items() if unit.active == "active"}
    saw(expected="enabled", actual=active or "none of them runs")
    if not active:
        skip("no lock names what should run, and what this machine type needs does not run as a unit")
    if wrong := [f"{name} runs, but is {state or 'unknown'} at boot" for name, state in active.items()
                 if state not in AT_BOOT]:  # fmt: skip
        fail("; ".join(wrong))


# A warning: gpuprov does not install them, and a node may be proven before its cluster takes it in.
@check(
    "services.jobs",
    severity="warn",
    action="reconfigure",
    reads=("units.txt",),
    says="What brings jobs to the node (slurmd, munge, kubelet) is meant to start at boot and does not run. Look at "
    "its log; the scheduler holds the node for down.",
)
def test_jobs(node: Facts, expected: Expected) -> None:
    units = _units(node, expected)
    installed = {name: unit for name in JOB_SERVICES if (unit := units.get(name)) and unit.load == "loaded"}
    meant = {name: unit.active for name, unit in installed.items() if unit.enabled in AT_BOOT[:2]}
    saw(expected="active", actual=meant or "none is meant to run")
    if not meant:
        skip("none of them is meant to start at boot")
    if wrong := [f"{name} is {state}" for name, state in meant.items() if state != "active"]:
        fail("; ".join(wrong))


@check(
    "services.imex",
    severity="fatal",
    documented="NVIDIA IMEX service guide; github aws/aws-parallelcluster 3.16",
    action="reconfigure",
    vendor="nvidia",
    reads=("units.txt",),
    follows=("driver.responds", "driver.version"),
    applies=lambda e: e.nvlink_across and (e.units is None or IMEX in e.units),
    otherwise="this machine's NVLinks do not leave the node",
    lock="without it IMEX may run in a pod",
    without_lock="a unit that does not run warns",
    says="IMEX does not run: processes on other nodes of the NVLink domain cannot reach this node's GPU memory.",
)
def test_imex(node: Facts, expected: Expected) -> None:
    unit = _units(node, expected).get(IMEX)
    saw(expected="active", actual=unit.active if unit else None)
    if unit is None:
        unknown(f"systemctl reports no state for {IMEX}")
    if unit.active != "active":
        # Under Kubernetes it runs in a pod, and the unit must be off (kubernetes-sigs/dra-driver-nvidia-gpu#524).
        unsure = () if expected.units is not None else ("that IMEX runs as a unit of the system's",)
        fail(f"{IMEX} is {unit.active if unit.load == 'loaded' else unit.load}", unverified=unsure)


@check(
    "services.failed",
    severity="warn",
    action="reconfigure",
    needs=("services.txt",),
    says="A service has failed, and no other check covers it. `systemctl status` shows the reason. Jobs may need it.",
)
def test_failed(node: Facts, expected: Expected) -> None:
    failed = [name for name in node.failed_units or () if not _told_elsewhere(name, node, expected)]
    differ = [name for name in failed if (unit := (node.units or {}).get(name)) is not None and unit.active == "active"]
    saw(expected="none", actual=failed or "none")
    contradiction = f"; systemctl show calls {', '.join(differ[:3])} active" if differ else ""
    if needed := [name for name in failed if any(fnmatchcase(name, pattern) for pattern in NEEDED)]:
        fail(f"failed: {', '.join(needed[:5])}{contradiction}")
    if failed:
        note(f"failed: {', '.join(failed[:5])}{contradiction}")


def _told_elsewhere(name: str, node: Facts, expected: Expected) -> bool:
    """Whether another check has the unit's own state, and it is as bad there."""
    unit = (node.units or {}).get(name)
    if unit is not None and name in (expected.units or ()):
        return unit.active != "active"
    if name == "nvidia-fabricmanager.service" and expected.fabric_manager:
        return node.fabric_manager is not None and node.fabric_manager.state != "active"
    if expected.units is None:
        return name in WITHOUT_LOCK
    return name in ELSEWHERE and (node.units is not None or name not in expected.units)


@check(
    "packages.unfinished",
    severity="warn",
    action="reconfigure",
    needs=("packages.txt",),
    follows=("packages.locked",),
    says="dpkg began with a package and did not end: the next installation fails on it. `dpkg --configure -a` ends it.",
)
def test_unfinished(node: Facts) -> None:
    unfinished = node.unfinished or {}
    saw(expected="none", actual=dict(unfinished) or "none")
    if unfinished:
        state_texts = {"unpacked": "is unpacked and not configured", "waiting for triggers": "waits for triggers"}
        state_texts |= {state: f"is {state}" for state in ("half-installed", "half-configured")}
        sentences = []
        for name, state_line in list(unfinished.items())[:5]:
            state = next((state for state in state_texts if state_line.endswith(state)), "")
            sentences.append(
                " ".join([name, *state_line.removesuffix(state).split(), state_texts.get(state, "")]).strip()
            )
        fail(", ".join(sentences))


@check(
    "packages.unattended",
    severity="warn",
    action="reconfigure",
    needs=("unattended.txt",),
    applies=lambda e: e.held,
    otherwise="no lock names a package to keep",
    lock="what has to stay as it is are its packages; half an upgrade is `driver.loaded_is_installed`",
    says="unattended-upgrades may move packages of the stack, which then no longer fit. `gpuprov up` forbids it.",
)
def test_unattended(node: Facts, expected: Expected) -> None:
    settings = node.unattended
    assert settings is not None
    free = [name for name in expected.held or () if not settings.spares(name)] if settings.periodic else []
    saw(expected="it leaves the stack alone", actual=free[:8] or "it leaves the stack alone")
    if free:
        fail(f"it may move {few(free, 4, ',')}")


VENDORS = ("developer.download.nvidia.com", "nvidia.github.io", "repo.radeon.com", "linux.mellanox.com")
"""Hosts that GPU vendors publish packages on."""


@check(
    "packages.sources",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    applies=lambda e: e.repositories is not None,
    otherwise="no lock names repositories",
    lock="which repositories belong there is the lock's to say",
    says="A repository of a GPU vendor is switched on beside those of the lock: apt may take other versions from it.",
)
def test_sources(node: Facts, expected: Expected) -> None:
    sources = reported(host_of(node).sources, "its repositories")
    locked = {_prefix(uri) for uri in expected.repositories or ()}
    strange = [
        source for source in sources if urlsplit(source).hostname in VENDORS and not _within(_prefix(source), locked)
    ]
    saw(expected=sorted(expected.repositories or ()), actual=strange or "none beside them")
    if strange:
        fail(f"not of the lock: {', '.join(strange[:3])}")


def _prefix(uri: str) -> str:
    parts = urlsplit(uri)
    return f"{parts.hostname}{parts.path.rstrip('/')}/"


def _within(source_prefix: str, locked: set[str]) -> bool:
    return any(
        source_prefix.startswith(locked_prefix) or locked_prefix.startswith(source_prefix) for locked_prefix in locked
    )


@check(
    "host.reboot_required",
    severity="warn",
    action="reboot",
    needs=("reboot.txt",),
    follows=("host.kernel_next",),
    says="A package waits for a reboot. Drain the node and reboot it before the next long job.",
)
def test_reboot_required(node: Facts) -> None:
    saw(expected="no", actual=node.reboot or "no")
    if node.reboot:
        fail(f"reboot required by {node.reboot}")


@check(
    "host.kernel_next",
    severity="warn",
    action="reconfigure",
    needs=("kernel.txt", "packages.txt"),
    says="The next boot brings another kernel, perhaps without the driver's module. Hold it, or reboot and verify.",
)
def test_kernel_next(node: Facts, expected: Expected) -> None:
    packages, kernels = node.packages or {}, (node.host.kernels if node.host else None) or {}
    if f"linux-image-{node.kernel}" not in packages:
        skip("the kernel is not a package of this system (a container, or a kernel of the provider's)")
    newest = newest_kernel(packages)
    saw(expected=node.kernel, actual=newest)
    if newest in (None, node.kernel):
        return
    modules = (node.host.kernel_modules if node.host else None) or {}
    lacks = [name for name in modules.get(node.kernel or "", ()) if name not in modules.get(newest or "", (name,))]
    lacks = [name for name in lacks if name != "nouveau"]
    if expected.vendor == "nvidia" and kernels.get(newest or "") is False and "nvidia" not in lacks:
        lacks.insert(0, "nvidia")
    without = f"; it lacks the modules {', '.join(lacks)}" if lacks else ""
    fail(f"kernel {newest} is installed, {node.kernel} runs{without}")


# The inventory's names are gpuprov's own, and a cloud gives others: what counts is that a name is one node's
# (fleet.hostname) and leads to it.
@check(
    "host.hostname",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    says="The node has no name of its own, or does not find itself by it: MPI, Slurm and gloo then do not start.",
)
def test_hostname(node: Facts, expected: Expected) -> None:
    host = host_of(node)
    name = reported(host.hostname, "its name")
    saw(expected="a name that leads to the node", actual={name: list(host.resolves or ())})
    if name.split(".")[0] in ("localhost", "ubuntu", "debian", "(none)") and expected.tuned is not None:
        fail(f"its hostname is {name}")
    if host.resolves is None:
        fail(f"looking up {name} timed out")
    if not host.resolves:
        fail(f"{name} does not resolve")
    own_addresses = [a for a in host.resolves if ipaddress.ip_address(a).is_loopback or a in (host.addresses or (a,))]
    if not own_addresses:
        fail(f"{name} leads to {', '.join(host.resolves[:3])}, none of which is the node's")


@check(
    "host.dns",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    follows=("host.hostname",),
    says="Looking up names is slow or not set up: connections and logins wait for it. Look at /etc/resolv.conf.",
)
def test_dns(node: Facts, expected: Expected) -> None:
    host, maximum = host_of(node), expected.most["net.resolve"]
    servers = reported(host.nameservers, "its name servers")
    saw(
        expected=f"a name server, answers within {maximum:g} s",
        actual={"servers": list(servers), "seconds": host.resolve_seconds},
    )
    if not servers and expected.bare_metal:
        skip("no name server: a private network may not have it")
    if not servers:
        fail("/etc/resolv.conf names no server")
    if host.resolve_seconds is None:
        unknown("looking up the node's own name timed out")
    if host.resolve_seconds > maximum:
        fail(f"looking up the node's own name took {host.resolve_seconds:.1f} s")
