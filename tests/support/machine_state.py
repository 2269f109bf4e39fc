"""What there is on this machine of podman, its networks and gpuprov's sandboxes, as lines that can be compared."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from provisioner.sandbox import leftovers, namespaces, podman_state
from provisioner.sandbox.backends import LEASES, RESULTS
from tests.support.run_processes import until

GONE_S = 120
"""For what the kernel takes apart by itself (namespaces, control groups)."""


def state() -> frozenset[str]:
    """Everything: containers, volumes, layers, networks, namespaces, links, firewall rules, mounts, monitors, control
    groups, gpuprov's own records and temporary folders."""
    return frozenset(f"{kind}: {line}" for kind, look in LOOKS.items() for line in look() if line.strip())


def unowned() -> frozenset[str]:
    """What no container has, and nothing tells whose it was: other sandboxes on this machine are not in it."""
    keys = _run("podman", "ps", "--all", "--quiet", "--no-trunc")
    used = _run("podman", "container", "inspect", "--format", "{{.NetworkSettings.SandboxKey}}", *keys) if keys else []
    names = {path.name for path in _entries(namespaces.FOLDER)} - {Path(key).name for key in used}
    return frozenset({f"namespace: {name}" for name in names} | {f"layer: {line}" for line in _unused_layers()})


def of_sandbox(lines: frozenset[str], name: str, octets: Collection[int]) -> list[str]:
    """Those of them that belong to one cluster, by its name or in one of these octets."""
    patterns = [rf"\b{name}\b"]
    patterns += [rf"gpuprov-{octet}\b|gpuprov-\S+\.{octet}\b|\b(?:10|127)\.77\.{octet}\." for octet in octets]
    return sorted(line for line in lines if re.search("|".join(patterns), line))


def assert_same(look: Callable[[], frozenset[str]], previous: frozenset[str]) -> None:
    """What is there is what was there, at once or soon."""
    lines = list[str]()

    def is_gone() -> bool:
        lines[:] = sorted(look() - previous)
        return lines == []

    assert until(is_gone, GONE_S), "\n".join(lines)


def _run(*argv: str) -> list[str]:
    if shutil.which(argv[0]) is None:
        return []
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    return done.stdout.splitlines()


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _layers() -> list[str]:
    return re.findall(r'"id": ?"([0-9a-f]{64})"', "\n".join(_run("containers-storage", "layers", "--json")))


def _unused_layers() -> set[str]:
    """Those that no container, image or other layer names."""
    texts = ["\n".join(_run("containers-storage", kind, "--json")) for kind in ("images", "containers", "layers")]
    parents = re.findall(r'"(?:layer|parent)": ?"([0-9a-f]{64})"', "\n".join(texts))
    return {*_layers()} - {*parents}


def _rules() -> Iterator[str]:
    for line in (*_run("iptables-save"), *_run("nft", "list", "ruleset")):
        if not line.startswith("#"):
            yield re.sub(r"\[\d+:\d+\]|counter packets \d+ bytes \d+", "", line)


def _monitors() -> Iterator[str]:
    for arguments in podman_state.processes().values():
        if Path(arguments[0]).name in ("conmon", "netavark", "aardvark-dns", "runc", "crun"):
            yield " ".join(arguments)[:200]


def _files() -> Iterator[str]:
    for folder in (Path("/var/lib/gpuprov"), leftovers.RECORDS, leftovers.LEASED, LEASES, RESULTS):
        yield from (str(path) for path in folder.rglob("*") if not path.name.startswith(("last_reserved_ip", "lock")))
    yield from (str(path) for pattern in ("gpuprov-node-*", "gpuprov-runtime-*") for path in Path("/tmp").glob(pattern))


LOOKS: dict[str, Callable[[], Iterator[str] | list[str]]] = {
    "container": lambda: _run("podman", "ps", "--all", "--external", "--format", "{{.ID}} {{.Names}}"),
    "volume": lambda: _run("podman", "volume", "ls", "--format", "{{.Name}}"),
    "network": lambda: _run("podman", "network", "ls", "--format", "{{.Name}}"),
    "layer": _layers,
    "namespace": lambda: [path.name for path in _entries(namespaces.FOLDER)],
    "link": lambda: [path.name for path in _entries(Path("/sys/class/net"))],
    "rule": _rules,
    "mount": lambda: [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()],
    "monitor": _monitors,
    "cgroup": lambda: [str(p) for p in leftovers.CGROUPS.glob("**/libpod_parent/libpod-*")],
    "runtime": lambda: [str(path) for name in ("runc", "crun") for path in _entries(leftovers.RUN / name)],
    "file": _files,
}
"""Kind → the lines of it. Rules, links and control groups without a container's name are told by their place alone."""
