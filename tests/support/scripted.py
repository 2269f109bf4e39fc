"""The real command line over lifecycles that make nothing and only tell events: what a person sees, without nodes.

`python -m tests.support.scripted up cluster.yaml --sandbox`. GPUPROV_TEST_GATES is a folder: a script waits at a gate
until a file of its name is there, and leaves `<name>.done` when it is through. GPUPROV_TEST_NODES: how many nodes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from provisioner.cli import gc as cli_gc
from provisioner.common.errors import Exit
from provisioner.lifecycle import down, gc, up
from provisioner.lifecycle.node_changes import NodeChanges
from provisioner.lifecycle.replace import command as replace
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.upgrade import command as upgrade
from provisioner.machines.providers.orphans import Thing
from provisioner.machines.terraform import binary
from provisioner.output.upgrade import UpgradeOutput
from provisioner.verify.results import CheckResult, NodeReport, Report

GATES = Path(os.environ["GPUPROV_TEST_GATES"])
NODES = [f"train-{number}" for number in range(int(os.environ.get("GPUPROV_TEST_NODES", "4")))]
FAILING = set(os.environ.get("GPUPROV_TEST_FAILING", "").split())
TASKS = [
    "base : Hold the packages of the lock",
    "nvidia_driver : Install the driver at the locked versions",
    "Record it",
]


def gate(name: str) -> None:
    """Wait until the test lets this go on."""
    deadline = time.monotonic() + 60
    while not (GATES / name).exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"nobody opened the gate {name}")
        time.sleep(0.01)


@contextlib.contextmanager
def noted(name: str) -> Iterator[None]:
    """Leave a file that says how the block ended: "done", or the name of what was raised."""
    how = "done"
    try:
        yield
    except BaseException as error:
        how = type(error).__name__
        raise
    finally:
        (GATES / f"{name}.done").write_text(how)


def report(healthy: bool = True) -> Report:
    check = CheckResult("gpu.count", "fatal", "pass" if healthy else "fail", "replace", "8 GPUs", 8, 8)
    return Report(tuple(NodeReport(name, "train", "lab", "p4d.24xlarge", True, (check,)) for name in NODES), {}, 0.0)


def making(cluster: Cluster) -> None:
    """Two sites, a wait, roles on every node, some of which fail, and the verdict."""
    events = cluster.events
    for site in ("virginia", "ohio"):
        events("terraform", "started", f"{site}: 5 resources", total=5)
        for number in range(5):
            events("terraform", "progress", f"node {number}: Creation complete", done=number + 1)
        events("terraform", "done", f"{site}: 5 resources")
    waits = {"total": len(NODES), "until": time.time() + 300, "data": {"nodes": NODES}}
    events("fleet", "started", f"waiting for ssh on {len(NODES)} nodes", **waits)
    for name in NODES[:-1]:
        events("fleet", "progress", "host key pinned", node=name, unit="node")
    gate("ssh")
    events("fleet", "progress", "host key pinned", node=NODES[-1], unit="node")
    events("fleet", "done", f"{len(NODES)} nodes reachable")
    events("configure", "started", f"running the roles on {len(NODES)} nodes", total=len(NODES))
    for number, task in enumerate(TASKS):
        for name in NODES:
            if name in FAILING and number == 1:
                data = {"task": task, "reason": "no space left on device"}
                events("configure", "failed", f"{task}: {data['reason']}", node=name, unit="task", data=data)
            elif name not in FAILING or number < 1:
                events("configure", "progress", task, node=name, done=number, total=len(TASKS), unit="task")
        if number == 1:
            gate("roles")
    for name in NODES:
        if name not in FAILING:
            events("configure", "progress", TASKS[-1], node=name, done=len(TASKS), total=len(TASKS), unit="task")
    gate("configured")
    events("configure", "done", f"{len(NODES)} nodes configured, 0 as locked")
    events("verify", "started", f"probing {len(NODES)} nodes", total=len(NODES))
    events("verify", "warning", "thermal: 84 C is close to the slowdown at 87 C", node=NODES[0])
    events("verify", "done", f"{len(NODES)} of {len(NODES)} nodes healthy")


def plan(cluster: Cluster) -> Any:
    groups = [
        SimpleNamespace(
            name=name,
            spec=g,
            machine=SimpleNamespace(name=g.machine),
            node_names=partial(g.node_names, name),
            site=cluster.spec.site_of(name),
        )
        for name, g in cluster.spec.groups.items()
    ]
    return SimpleNamespace(groups=groups, images={})


CREATE = NodeChanges(create=tuple(NODES), total=9)


def scripted(cluster: Cluster, *arguments: Any, confirm: Any, only: tuple[str, ...] = ()) -> up.Run:
    with noted("lifecycle"):
        run = up.Run(Path())
        cluster.events("stack", "started", "choosing compatible versions")
        cluster.events("stack", "done", "locked: driver 580.95.05")
        gate("asked")
        if confirm(plan(cluster), CREATE):
            with noted("work"):
                making(cluster)
            run.report, run.healthy, run.seconds = report(), True, {"terraform": 1.0}
        return run


def replaced(cluster: Cluster, *arguments: Any, confirm: Any) -> up.Run:
    return scripted(cluster, *arguments, confirm=lambda _, changes: confirm(changes.total))


def moved(cluster: Cluster, *arguments: Any, confirm: Any) -> Any:
    done = SimpleNamespace(exit=Exit.OK, ok=True)
    with noted("lifecycle"):
        gate("asked")
        if confirm({name: ["driver 580.65.06 to 580.95.05"] for name in NODES}, 2, NODES[:1]):
            with noted("work"):
                making(cluster)
        return done


def removed(cluster: Cluster, *_: Any) -> down.Removal:
    with noted("work"):
        cluster.events("down", "started", "virginia: removing machines")
        cluster.events("terraform", "started", "virginia: 5 resources", total=5)
        cluster.events("down", "done", "5 resources removed, nothing is left")
        return down.Removal(5)


def remove_left(places: Any, chosen: Any, announce: Any) -> tuple[int, list[str]]:
    with noted("work"):
        announce("instance i-0a removed")
        return 1, []


def main() -> None:
    Cluster.require_rights = lambda _: None  # type: ignore[method-assign]
    up.up = scripted
    replace.replace = replaced  # type: ignore[assignment]
    upgrade.upgrade = moved  # type: ignore[assignment]
    ended = UpgradeOutput.model_construct(nodes=[], message="every node runs the new lock")
    upgrade.document = lambda *_: ended
    down.down, down.recorded_nodes = removed, lambda _: NODES
    instance = Thing("instance", "i-0a", "vision", "", "us-east-1")
    cluster = gc.Cluster("vision", "", "us-east-1", (instance,), "")
    gc.look = lambda *_: gc.Remainder((cluster,), ())
    gc.chosen = lambda *_: [cluster]
    gc.remove = remove_left
    cli_gc._orphans = lambda *_: None  # type: ignore[assignment,return-value]
    binary.find = lambda _, **_more: None  # type: ignore[assignment,return-value]
    from provisioner import __main__

    __main__.main()


if __name__ == "__main__":
    main()
