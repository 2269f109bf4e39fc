"""How long it takes to read and judge sixteen nodes, against pytest-testinfra reading the same facts.

The rivals get what makes them fast: one pytest process for all nodes, pinned host keys as gpuprov has them, shared ssh
connections (ControlPersist) that are warm. Ansible's backend is measured where it really goes through Ansible
(force_ansible); without that testinfra takes its ssh backend, which is measured by itself.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from bench import upping
from bench.fleet import Fleet
from bench.measure import Done, Timing, run, take_turns
from bench.promises import Promise

EXAMPLE, NODES = "rtx4090", 16
RIVAL = Path(__file__).with_name("rivals") / "node_facts.py"
FASTER_THAN_ANSIBLE, FASTER_THAN_SSH = 15.0, 1.0


def measure(runs: int, *, fleet: Fleet | None = None) -> list[Promise]:
    if fleet is None:
        with Fleet.of_example(EXAMPLE, NODES) as made:
            made.warm_cache()
            first = run(made.up)
            return [upping.again(made, first, NODES, runs), *measure(runs, fleet=made)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # testinfra starts `ansible` by name
    environment = {"BENCH_EXPECTED": json.dumps(_expected(fleet)), "PATH": path}
    names = [node["name"] for node in json.loads((fleet.root / "nodes.json").read_text())]

    def rival(*options: str) -> Done:
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(RIVAL)]
        return run([*argv, *options], cwd=fleet.folder, env=environment)

    config = fleet.root / "ssh" / "config"
    by_ssh = [f"--hosts={','.join(f'ssh://{name}' for name in names)}", f"--ssh-config={config}"]
    inventory = fleet.folder / "rival.ini"
    inventory.write_text("".join(f"{name} ansible_ssh_common_args='-F {config}'\n" for name in names))
    by_ansible = ["--hosts=ansible://all?force_ansible=True", f"--ansible-inventory={inventory}"]
    ours, ssh = take_turns(lambda: run(fleet.verify), lambda: rival(*by_ssh), runs=runs)
    ansible = Timing((rival(*by_ansible).seconds,))
    numbers = {"ours": ours.runs, "ssh": ssh.runs, "ansible": ansible.runs}
    subject = f"`verify` of {len(names)} nodes"
    return [
        Promise(
            f"{subject} against testinfra by Ansible", "at least 15 × faster", f"{ours} against {ansible}",
            ansible.median / ours.median, FASTER_THAN_ANSIBLE, at_most=False, unit="× faster", numbers=numbers,
        ),
        Promise(
            f"{subject} against testinfra by ssh, ControlPersist", "faster", f"{ours} against {ssh}",
            ssh.median / ours.median, FASTER_THAN_SSH, at_most=False, unit="× faster", numbers=numbers,
        ),
    ]  # fmt: skip


def _expected(fleet: Fleet) -> dict[str, object]:
    """What the rival compares with: taken from the lock and the catalogue, as gpuprov does."""
    from provisioner.session import open_cluster

    group = open_cluster(fleet.file, sandbox=True).plan().groups[0]
    return {
        "gpus": group.machine.gpu_count,
        "model": group.gpu.product_names[0],
        "packages": {package.name: package.version for package in group.stack.packages if package.repository == "cuda"},
        "image": group.stack.images[0].pull,
    }
