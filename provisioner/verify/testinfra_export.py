"""The acceptance suite as plain pytest and testinfra: the files of testinfra_suite/ and expected.json beside them.

expected.json holds what the catalogue and the lock expect of each node, never what a node has. A fact that no
measurement and no document supports is in `unverified`: the suite warns of it and never fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files as resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import private_dir, write_whole
from provisioner.verify.expectations import IMEX

if TYPE_CHECKING:
    from provisioner.verify.expectations import Expected

FORMAT = "gpuprov-testinfra/1"
DATA = "expected.json"
README = "README.md"
FACTS: Mapping[str, tuple[str, ...]] = {
    "gpu_count": ("gpu_count",),
    "gpu_model": ("gpu_model",),
    "gpu_names": ("product_names",),
    "gpu_memory_mib": ("memory_mib",),
    "ecc": ("ecc",),
    "nvlinks_per_gpu": ("nvlinks_per_gpu",),
    "topology": ("topology",),
    "nvswitches": ("nvswitches",),
    "fabric_manager": ("fabric_manager",),
    "nvlink_fabric": ("fabric_manager", "switched"),
    "imex": ("nvlink_across",),
    "network": ("network",),
    "rdma_ports": ("ports",),
    "rdma_port_gbps": ("rate_gbps",),
    "rdma_devices": ("rdma_devices",),
    "rdma_pci_addresses": ("rdma_pci",),
    "efa": ("efa",),
}
"""Fact of expected.json → the fields of Expected whose basis it has (basis.py). The other facts are the lock's."""


def suite_files() -> dict[str, bytes]:
    """The files of the suite by name, without expected.json."""
    folder = resources("provisioner.verify") / "testinfra_suite"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def facts_of(expected: Expected) -> dict[str, Any]:
    """What the suite expects of one node."""
    nvidia = expected.vendor == "nvidia"
    joins = expected.fabric_manager or (expected.switched and expected.nvlink_generation == 5)
    images = [
        {key: image.get(key) for key in ("reference", "pull", "digest", "torch", "cuda", "nccl", "python")}
        for image in expected.images or ()
    ]
    facts = {
        "machine": expected.machine,
        "vendor": expected.vendor,
        "gpu_count": expected.gpu_count,
        "gpu_model": expected.gpu_model,
        "gpu_names": list(expected.product_names),
        "gpu_memory_mib": expected.memory_mib,
        "ecc": expected.ecc,
        "mig": expected.mig,
        "nvlinks_per_gpu": list(expected.nvlinks_per_gpu) if expected.nvlinks_per_gpu else None,
        "topology": dict(expected.topology) if expected.topology and nvidia and expected.gpu_count > 1 else None,
        "nvswitches": expected.nvswitches,
        "fabric_manager": expected.fabric_manager,
        "nvlink_fabric": joins,
        "imex": expected.nvlink_across and IMEX in (expected.units or ()),
        "network": expected.network,
        "rdma_ports": expected.ports,
        "rdma_port_gbps": expected.rate_gbps,
        "rdma_devices": list(expected.rdma_devices),
        "rdma_pci_addresses": list(expected.rdma_pci),
        "efa": expected.efa,
        "driver": expected.driver if nvidia else None,
        "cuda": expected.cuda if nvidia else None,
        "nccl": expected.nccl if nvidia else None,
        "packages": dict(sorted((expected.packages or {}).items())),
        "images": images,
        "dcgm_exporter": bool(expected.dcgm_exporter) and nvidia,
    }
    unverified = [fact for fact, keys in FACTS.items() if not all(map(expected.verified, keys))]
    return {**facts, "unverified": unverified}


def document(cluster: str, nodes: Mapping[str, tuple[str, Expected]], *, simulated: bool) -> dict[str, Any]:
    """The content of expected.json. `nodes`: name → group and what is expected. Nodes that run different locks have
    different expectations in one group: the second is called GROUP (2)."""
    expectations: dict[str, dict[str, Any]] = {}
    key_of: dict[str, str] = {}
    for name, (group, expected) in nodes.items():
        facts, key, number = facts_of(expected), group, 1
        while expectations.setdefault(key, facts) != facts:
            number += 1
            key = f"{group} ({number})"
        key_of[name] = key
    return {
        "format": FORMAT,
        "files": sorted(suite_files()),
        "cluster": cluster,
        "simulated": simulated,
        "nodes": key_of,
        "expectations": expectations,
    }


def refuse_other_folder(folder: Path) -> None:
    """Raise GpuprovError for a folder that has files, and no earlier export."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise GpuprovError("cannot export the suite: it is a file", where=str(folder), hint="pass a directory")
    if any(folder.iterdir()) and _exported_files(folder) is None:
        hint = "pass a new directory, or one of an earlier export"
        raise GpuprovError("the directory is not empty and not an earlier export", where=str(folder), hint=hint)


def _exported_files(folder: Path) -> list[str] | None:
    """The files that an earlier export has written; None where there was none."""
    try:
        earlier = json.loads((folder / DATA).read_text(encoding="utf-8"))
        names = [str(name) for name in earlier["files"]] if earlier["format"].startswith("gpuprov-testinfra/") else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return None if names is None else [name for name in names if re.fullmatch(r"[A-Za-z0-9_]+\.[a-z]+", name)]


def write(folder: Path, content: Mapping[str, Any]) -> None:
    """Write the suite. Files of an earlier export that this one does not have are removed; other files stay."""
    refuse_other_folder(folder)
    earlier = _exported_files(folder) or []
    private_dir(folder)
    files = suite_files()
    for name in earlier:
        if name not in files:
            (folder / name).unlink(missing_ok=True)
    files[README] = _with_fleet_names(files[README], str(content["cluster"]), list(content["nodes"]))
    for name, text in files.items():
        write_whole(folder / name, text, mode=0o644)
    write_whole(folder / DATA, _text(content), mode=0o644)


def _with_fleet_names(readme: bytes, cluster: str, nodes: Sequence[str]) -> bytes:
    """The README with this fleet's own names in its examples."""
    hosts = ",".join(f"ssh://{cluster}-{node}" for node in nodes[:2])
    text = readme.decode().replace("ssh://vision-train-0,ssh://vision-train-1", hosts)
    first = nodes[0] if nodes else "train-0"
    text = text.replace("vision-train-0", f"{cluster}-{first}")
    return re.sub(r"([`=])train-0`", lambda match: f"{match[1]}{first}`", text).encode()


def _text(content: Mapping[str, Any]) -> str:
    """JSON for readers: a list of plain values stands on one line."""
    text = json.dumps(content, indent=2)
    return re.sub(r"\[[^\[\]{}]*\]", lambda match: json.dumps(json.loads(match[0])), text) + "\n"
