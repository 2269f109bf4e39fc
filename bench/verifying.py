"""How long it takes to read and judge sixteen nodes, against pytest-testinfra reading the same facts.

The rivals get what makes them fast: one pytest process for all nodes, pinned host keys as gpuprov has them, shared ssh
connections (ControlPersist) that are warm. Ansible's backend is measured where it really goes through Ansible
(force_ansible); without that testinfra takes its ssh backend, which is measured by itself.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import upping
from bench.fleet import Fleet
from bench.measure import Done, Timing, run, take_turns
from bench.promises import Promise
from provisioner.lifecycle.subjects import subjects_of

EXAMPLE, NODES = "rtx4090", 16
RIVALS, ROOT = Path(__file__).with_name("rivals"), Path(__file__).parents[1]
RIVAL, SAME = RIVALS / "node_facts.py", RIVALS / "same_commands.py"
FASTER_THAN_ANSIBLE, FASTER_THAN_SSH = 15.0, 1.0
AWAY_MS = 80
"""From Europe to the east of North America, there and back; nodes of a cloud are seldom in the room."""
OF_BARE_SSH, FASTER_THAN_ONE_BY_ONE = 2.0, 20.0


def measure(runs: int, *, fleet: Fleet | None = None) -> list[Promise]:
    if fleet is None:
        with Fleet.of_example(EXAMPLE, NODES) as example_fleet:
            example_fleet.warm_cache()
            first = run(example_fleet.up)
            return [upping.measure_rerun(example_fleet, first, NODES, runs), *measure(runs, fleet=example_fleet)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # testinfra starts `ansible` by name
    same = json.dumps(_commands(fleet))
    environment = {"BENCH_EXPECTED": json.dumps(_expected(fleet)), "BENCH_COMMANDS": same, "PATH": path}
    names = [node["name"] for node in json.loads((fleet.root / "nodes.json").read_text())]

    def rival(*options: str, file: Path = RIVAL) -> Done:
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(file)]
        return run([*argv, *options], cwd=fleet.folder, env=environment)

    config = fleet.root / "ssh" / "config"
    by_ssh = [f"--hosts={','.join(f'ssh://{name}' for name in names)}", f"--ssh-config={config}"]
    inventory = fleet.folder / "rival.ini"
    inventory.write_text("".join(f"{name} ansible_ssh_common_args='-F {config}'\n" for name in names))
    by_ansible = ["--hosts=ansible://all?force_ansible=True", f"--ansible-inventory={inventory}"]
    ours, ssh = take_turns(lambda: run(fleet.verify), lambda: rival(*by_ssh), runs=runs)
    ansible = Timing((rival(*by_ansible).seconds,))
    bare_argv = [sys.executable, str(SAME), str(config), ",".join(names)]
    quick, bare = take_turns(
        lambda: run([*fleet.verify, "--level", "quick"]), lambda: run(bare_argv, env=environment), runs=runs
    )
    one_by_one = Timing((rival(*by_ssh, file=SAME).seconds,))
    with far(fleet):
        quick_far = Timing(tuple(run([*fleet.verify, "--level", "quick"]).seconds for _ in range(runs)))
        one_by_one_far = Timing((rival(*by_ssh, file=SAME).seconds,))
    numbers = {
        "quick_far": quick_far.runs, "one_by_one_far": one_by_one_far.runs,
        "ours": ours.runs, "ssh": ssh.runs, "ansible": ansible.runs,
        "quick": quick.runs, "bare": bare.runs, "one_by_one": one_by_one.runs,
    }  # fmt: skip
    subject = f"`verify` of {len(names)} nodes"
    return [
        Promise(
            f"{subject} at level quick against a bare parallel ssh of the same commands", "at most 2 ×",
            f"{quick} against {bare}", quick.median / bare.median, OF_BARE_SSH, numbers=numbers,
        ),
        Promise(
            f"{subject} at level quick against testinfra by ssh, the same commands one by one", "at least 20 × faster",
            f"{quick} against {one_by_one}", one_by_one.median / quick.median, FASTER_THAN_ONE_BY_ONE, at_most=False,
            unit="× faster", numbers=numbers,
        ),
        Promise(
            f"the same with nodes {AWAY_MS} ms away, there and back", "at least 20 × faster",
            f"{quick_far} against {one_by_one_far}", one_by_one_far.median / quick_far.median, FASTER_THAN_ONE_BY_ONE,
            at_most=False, unit="× faster", numbers=numbers,
        ),
        Promise(
            f"{subject} against testinfra by Ansible", "at least 15 × faster", f"{ours} against {ansible}",
            ansible.median / ours.median, FASTER_THAN_ANSIBLE, at_most=False, unit="× faster", numbers=numbers,
        ),
        Promise(
            f"{subject} against testinfra by ssh, ControlPersist", "faster", f"{ours} against {ssh}",
            ssh.median / ours.median, FASTER_THAN_SSH, at_most=False, unit="× faster", numbers=numbers,
        ),
    ]  # fmt: skip


@contextmanager
def far(fleet: Fleet) -> Iterator[None]:
    """The same nodes, AWAY_MS away: for everybody who goes by gpuprov's ssh configuration."""
    config = fleet.root / "ssh" / "config"
    original = config.read_text()
    relay = f"  ProxyCommand env PYTHONPATH={ROOT} {sys.executable} -m bench.far %h {AWAY_MS}\n"
    away = re.sub(r"(?m)^  HostName .*\n", lambda match: match[0] + relay, original)
    names = [node["name"] for node in json.loads((fleet.root / "nodes.json").read_text())]
    try:
        for text in (away, original):
            for name in names:  # a connection that is open stays as near as it was
                subprocess.run(["ssh", "-F", str(config), "-O", "exit", name], capture_output=True, check=False)
            config.write_text(text)
            if text is away:
                yield
    finally:
        config.write_text(original)


def _commands(fleet: Fleet) -> list[list[str]]:
    """What the probe runs on such a node at level quick, as commands."""
    from provisioner.lifecycle.session import open_cluster
    from provisioner.verify.probe import host, host_disks, node
    from provisioner.verify.request import request_for
    from provisioner.verify.tools import FILES

    subject = subjects_of(open_cluster(fleet.file, sandbox=True))[0]
    request = request_for(subject.expected)
    images = [image["pull"] for image in request.images]
    files = [f"/{name}" for name in host.HOST_FILES]
    more = {
        "holds.txt": ["apt-mark", "showhold"],
        "modules.txt": ["lsmod"],
        "dcgm-exporter.prom": ["curl", "-s", f"http://127.0.0.1:{request.port}/metrics"],
        "nvidia-dev.txt": ["ls", "-l", "/dev"],
        "units.txt": ["systemctl", "show", node.UNIT, "--no-pager", "--", *request.units],
        "container-images.json": ["docker", "image", "inspect", *images],
    }
    tools = [FILES[name] for name in request.files]
    tool_commands = [list(tool.command) or more.get(tool.file) for tool in tools]
    files += [path for tool in tools for path in tool.paths]
    host_commands = [host_disks.DF, host.SYNC, ["sshd", "-T"], ["docker", "info"]]  # of host.json
    read = [["cat", file] for file in files]
    return [argv for argv in (*tool_commands, *host_commands, *read) if argv]


def _expected(fleet: Fleet) -> dict[str, object]:
    """What the rival compares with: taken from the lock and the catalogue, as gpuprov does."""
    from provisioner.lifecycle.session import open_cluster
    from provisioner.plan.models import build_plan

    cluster = open_cluster(fleet.file, sandbox=True)
    group = build_plan(cluster.spec, cluster.lock).groups[0]
    return {
        "gpus": group.machine.gpu_count,
        "model": group.gpu.product_names[0],
        "packages": {package.name: package.version for package in group.stack.packages if package.repository == "cuda"},
        "image": group.stack.images[0].pull,
    }
