"""Docker and how containers get the GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from provisioner.common.text import counted
from provisioner.verify.check import NO_LOCK, check, fail, saw, skip, unknown
from provisioner.verify.checks.host import NEEDS, host_of, reported
from provisioner.verify.checks.known_bad import driver_version
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.host_software import Cdi, Docker

CDI_UNIT = "gpuprov-cdi.service"


def _docker(node: Facts) -> Docker:
    docker = host_of(node).docker
    if docker is None:
        skip("docker is not installed")
    if docker.error is not None:
        unknown(f"docker does not answer: {docker.error}")
    return docker


@check(
    "container.runtime",
    severity="fatal",
    documented="docs.docker.com, docker info: fails where the daemon does not answer; github mej/nhc, leptonai/gpud",
    action="reconfigure",
    needs=NEEDS,
    lock="only it asks for containers, and for docker",
    without_lock="docker that is installed and does not answer warns",
    says="Docker is not installed or does not answer: no container can start. `systemctl status docker` says why.",
)
def test_runtime(node: Facts, expected: Expected) -> None:
    docker, is_required = host_of(node).docker, expected.images or expected.tuned is not None
    if docker is None and not is_required:
        skip("docker is not installed, and no lock asks for containers")
    saw(expected="docker answers", actual=(docker.error or f"docker {docker.version}") if docker else "not installed")
    if docker is None:
        fail("docker is not installed")
    if docker.error is not None:
        fail(f"docker does not answer: {docker.error}", unverified=() if is_required else (NO_LOCK,))


# Without a lock a description has to be of the driver that runs: that of another one gives containers its libraries.
@check(
    "container.cdi",
    severity="fatal",
    documented="NVIDIA Container Toolkit, Support for Container Device Interface: generate again after a driver update",
    action="reconfigure",
    vendor="nvidia",
    needs=NEEDS,
    follows=("driver.responds", "driver.version", "gpu.count"),
    lock="only with its container toolkit a description has to be there",
    without_lock="a description that is there for another driver than the one that runs warns",
    says="GPUs are not described to containers, or for another driver: containers then have no GPU or wrong libraries.",
)
def test_cdi(node: Facts, expected: Expected) -> None:
    if expected.units is not None and CDI_UNIT not in expected.units:
        skip("the lock does not have the container toolkit")
    if expected.units is None:
        _fits_the_driver(_of_gpus(host_of(node).cdi or ()), driver_version(node))
        return
    specs = _of_gpus(reported(host_of(node).cdi, "its CDI descriptions"))
    saw(expected=f"nvidia.com/gpu for driver {expected.driver}", actual={c.file: c.driver for c in specs} or "none")
    if not specs:
        fail("no file in /etc/cdi or /run/cdi describes nvidia.com/gpu")
    other = [c for c in specs if c.driver is not None and expected.driver is not None and c.driver != expected.driver]
    if other:
        fail(f"{other[0].file} is for driver {other[0].driver}, the lock says {expected.driver}")
    if not any("all" in c.devices or len(c.devices) >= (node.gpus_present or 1) for c in specs):
        fail(f"{specs[0].file} has {counted(len(specs[0].devices), 'device')}")


def _of_gpus(specs: Iterable[Cdi]) -> list[Cdi]:
    return [spec for spec in specs if "nvidia.com/gpu" in spec.kinds]


def _fits_the_driver(specs: list[Cdi], loaded: str | None) -> None:
    """Whether what describes the GPUs to containers is of the driver that runs."""
    saw(expected=f"for driver {loaded}", actual={c.file: c.driver for c in specs} or "none")
    if not specs:
        skip("no lock has the container toolkit, and no file describes nvidia.com/gpu")
    if loaded is None:
        skip("no tool reports the driver's version")
    for spec in specs:
        if spec.driver not in (None, loaded):
            fail(f"{spec.file} is for driver {spec.driver}, {loaded} is loaded", unverified=(NO_LOCK,))


@check(
    "container.survives_reload",
    severity="warn",
    action="reconfigure",
    vendor="nvidia",
    needs=NEEDS,
    follows=("driver.responds", "gpu.count"),
    applies=lambda e: CDI_UNIT in (e.units or ()),
    otherwise="no lock has the container toolkit",
    lock="only where it has the container toolkit are links in /dev/char wanted",
    says="Links in /dev/char are missing: containers lose their GPUs at the next daemon-reload. Start gpuprov-cdi.",
)
def test_survives_reload(node: Facts) -> None:
    links = reported(host_of(node).gpu_links, "its links in /dev/char")
    numbers = {name.partition(":")[2] for name in links}
    present = node.gpus_present or 0
    saw(expected=f"links to {present} GPUs and nvidiactl", actual=len(links))
    if "255" not in numbers or len(numbers - {"254", "255"}) < present:
        fail(f"{counted(len(links), 'link')} to NVIDIA's devices in /dev/char for {counted(present, 'GPU')}")


@check(
    "container.live_restore",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    follows=("container.runtime",),
    applies=lambda e: e.tuned is not None,
    otherwise="gpuprov did not configure this machine",
    lock="docker's default is off: on is what role container_runtime sets",
    says="Containers end when docker is restarted, as an update of it does. Role container_runtime sets live-restore.",
)
def test_live_restore(node: Facts) -> None:
    live = _docker(node).live_restore
    saw(expected=True, actual=live)
    if live is not True:
        fail("live-restore is off")


SLOW_STORAGE = ("vfs", "devicemapper", "aufs")
"""Storage drivers of docker that copy whole layers, or that it has given up (docker's documentation of each)."""


@check(
    "container.storage",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    follows=("container.runtime",),
    says="Docker copies every layer for each container: starting takes minutes, and the disk fills. Use overlay2.",
)
def test_storage(node: Facts) -> None:
    driver = _docker(node).storage
    saw(expected="overlay2", actual=driver)
    if driver in SLOW_STORAGE:
        fail(f"docker's storage driver is {driver}")


@check(
    "container.cgroup",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    follows=("container.runtime",),
    says="Docker keeps control groups beside systemd, and not by its own default: two set limits on one machine. Look "
    "at exec-opts in /etc/docker/daemon.json.",
)
def test_cgroup(node: Facts) -> None:
    """Only with version 2, where systemd is docker's default (docs.docker.com, dockerd --exec-opt)."""
    driver = _docker(node).cgroup
    if host_of(node).cgroup2 is not True:
        skip("docker keeps its own control groups of version 1, or the version is unknown")
    saw(expected="systemd", actual=driver)
    if driver is None:
        skip("docker does not tell its cgroup driver")
    if driver != "systemd":
        fail(f"docker's cgroup driver is {driver}")


@check(
    "container.disk",
    severity="warn",
    action="clean",
    needs=NEEDS,
    follows=("container.runtime", "storage.full", "storage.root_space"),
    applies=lambda e: e.images,
    otherwise="no lock names an image",
    lock="whether images are kept on the node, and how large they are, follows from it; a full disk is `storage.full`",
    says="There is no room for another container image where docker keeps them. `docker image prune` frees some.",
)
def test_disk(node: Facts) -> None:
    host = host_of(node)
    root = _docker(node).root or "/var/lib/docker"
    if host.space is None:
        unknown("df does not respond")
    fs = host.at(root)
    if fs is None:
        unknown(f"df does not list {root}")
    saw(expected=f"{ROOM / 1e9:g} GB or more", actual=f"{fs.available / 1e9:.0f} GB in {root}")
    if fs.available < ROOM:
        fail(f"{fs.available / 1e9:.1f} GB are free in {root}; `docker image prune` frees some")


ROOM = 25 * 10**9
"""Bytes of a framework's image, unpacked: NGC's PyTorch is about 20 GB (unverified)."""
