"""Versions on the node that are known to be broken with its hardware, or that a security bulletin calls vulnerable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from provisioner.common.text import counted, few
from provisioner.verify.check import ACTIONS, check, fail, note, saw, unknown
from provisioner.verify.checks.gpu import is_model
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.versions import contains, first_fixed

DAY = 86400.0
TOOLKIT = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container1",
    "libnvidia-container-tools",
)
"""Packages that carry the container toolkit's version."""
TITLES = {"driver": "driver", "container_toolkit": "container toolkit"}


# It needs no file: where nvidia-smi hangs for one of these reasons, the driver's own file still tells its version.
@check(
    "driver.known_bad",
    severity="warn",
    documented="catalog/data/known_bad.yaml has the report of each row",
    action="reconfigure",
    needs=(),
    vendor="nvidia",
    applies=lambda e: e.known_bad,
    otherwise="nothing is known to be broken with these GPUs",
    says="These versions are known to fail with this hardware, and the node has them. The message names the report and "
    "what to do before it happens here.",
)
def test_known_bad(node: Facts, expected: Expected) -> None:
    version = driver_version(node)
    if version is None:
        unknown("no tool reports the driver's version")
    matches = [row for row in expected.known_bad if is_match(row, node, expected)]
    saw(expected="no row of the table of known faults", actual=[row["id"] for row in matches] or f"driver {version}")
    if matches:
        worst = max((row["action"] for row in matches), key=ACTIONS.index)
        fail(few([describe(row, node) for row in matches], 3), action=worst)


def describe(row: Mapping[str, Any], node: Facts) -> str:
    days = (
        f" (up for {node.host.uptime / DAY:.0f} days)"
        if "uptime_days" in row and node.host and node.host.uptime
        else ""
    )
    return f"{row['happens']}{days}. {row['advice']} Source: {row['source']}"


def is_match(row: Mapping[str, Any], node: Facts, expected: Expected) -> bool:
    """Whether every condition of a row holds; what the node does not report is no match."""
    return all(_conditions(row, node, expected))


def _conditions(row: Mapping[str, Any], node: Facts, expected: Expected) -> Iterator[bool]:
    if names := row.get("names"):
        models = {gpu.model for gpu in node.gpus or () if gpu.model} or set(expected.product_names)
        yield any(is_model(model, names, "nvidia") for model in models)
    for key, versions in (
        ("driver", (driver_version(node),)),
        ("kernel", (node.kernel,)),
        ("nccl", nccl_versions(node)),
        ("container_toolkit", (toolkit_version(node),)),
    ):
        if key in row:
            yield any(contains(row[key], version) for version in versions if version)
    if "modules" in row:
        yield node.module is not None and node.module.flavour == row["modules"]
    for name in row.get("loaded", ()):
        yield node.modules is not None and name in node.modules
    if "uptime_days" in row:
        uptime = node.host.uptime if node.host else None
        yield uptime is not None and uptime >= row["uptime_days"] * DAY


def driver_version(node: Facts) -> str | None:
    return node.module.version if node.module else node.smi.driver_version if node.smi else None


def toolkit_version(node: Facts) -> str | None:
    return next((version for name in TOOLKIT if (version := (node.packages or {}).get(name))), None)


def nccl_versions(node: Facts) -> tuple[str, ...]:
    """Of the locked images, else of the node's own library."""
    images = tuple(framework.nccl for framework in node.frameworks or () if framework.nccl)
    library = (node.packages or {}).get("libnccl2")
    return images or ((library,) if library else ())


@check(
    "security.bulletins",
    severity="warn",
    documented="NVIDIA's security bulletins (catalog/data/security.yaml has each with its source)",
    action="reconfigure",
    needs=("packages.txt",),
    vendor="nvidia",
    follows=("driver.responds", "driver.version", "driver.loaded_is_installed", "packages.locked"),
    applies=lambda e: e.bulletins,
    otherwise="the catalogue has no bulletin of its vendor",
    lock="what it names is gpuprov's to renew",
    without_lock="an open bulletin is a note",
    says="A security bulletin names a newer driver or container toolkit than the node has: a job can take over the "
    "host. Lock newer versions and roll them out with `gpuprov upgrade`.",
)
def test_bulletins(node: Facts, expected: Expected) -> None:
    versions = {"driver": driver_version(node), "container_toolkit": toolkit_version(node)}
    open_rows = []
    for part, version in versions.items():
        rows = [row for row in expected.bulletins if row["part"] == part]
        missing = [
            (row, fixed)
            for row in rows
            if version and (fixed := first_fixed(version, tuple(row["fixed"]), by_branch=part == "driver"))
        ]
        if missing:
            row, fixed = max(missing, key=lambda pair: pair[0]["published"])
            older = f", and {counted(len(missing) - 1, 'older bulletin')}" if len(missing) > 1 else ""
            cves = f": {few(row['cves'], 3, ',')}" if row["cves"] else ""
            open_rows.append(f"{TITLES[part]} {version} is older than {fixed} ({row['published']}{cves}){older}")
    saw(expected="no open bulletin", actual=open_rows or versions)
    if open_rows and expected.driver is None:  # whoever installed it keeps it up to date
        note("; ".join(open_rows))
    if open_rows:
        fail("; ".join(open_rows))
    if versions["driver"] is None:
        unknown("no tool reports the driver's version")
