"""terraform/sandbox/node.sh removes what is this cluster's alone: exact names, and labels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

NODE_SH = Path(__file__).resolve().parents[3] / "terraform/sandbox/node.sh"
NAME, NETWORK = "gpuprov-lab-dgx-0.250", "gpuprov-250"
PODMAN = """#!{python}
# Podman, as far as node.sh uses it, over one JSON file: kind -> name -> labels.
import json, re, sys
path = {path!r}
state = json.load(open(path))
arguments = sys.argv[3:]  # --runtime NAME
labels = dict(a.split("=", 1) for flag, a in zip(arguments, arguments[1:]) if flag == "--label")
def shown(name, own, form):
    form = form.replace("{{{{.ID}}}}", "id-of-" + name).replace("{{{{.Names}}}}", name)
    print(re.sub(r'{{{{index .Labels "([^"]*)"}}}}', lambda match: own.get(match[1], ""), form))
if arguments[0] in ("create", "start", "cp", "rm", "ps"):
    kind, verb = "container", arguments[0]
else:
    kind, verb = arguments[:2]
things, name = state[kind], arguments[-1]
if verb == "exists":
    sys.exit(name not in things)
elif verb == "ps":
    expression = arguments[arguments.index("--filter") + 1].removeprefix("name=")
    for key, own in things.items():
        if re.search(expression, key):
            shown(key, own, arguments[-1])
elif verb == "inspect":
    if name not in things:
        sys.exit(1)
    shown(name, things[name], arguments[arguments.index("--format") + 1])
elif verb == "create":
    name = arguments[arguments.index("--name") + 1] if kind == "container" else name
    state["arguments"] = arguments
    if state["refuses"] == kind:
        sys.exit(125)
    things[name] = labels
    print("id-of-" + name)
elif verb == "rm":
    things.pop(name, None)
json.dump(state, open(path, "w"))
"""


@dataclass
class Machine:
    """`state`: kind → name → labels, before and after a run."""

    folder: Path
    state: dict[str, Any]

    def run(self, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        values = {
            "NAME": NAME, "OCTET": "250", "WORKSPACE": "/ws/lab", "PODMAN": str(self.folder / "podman"),
            "RUNTIME": str(self.folder / "runc"), "ROLE": "node", "NODE": "dgx-0", "CLUSTER": "lab", "LABELS": "",
            "PRIVATE_IP": "10.77.250.4", "PUBLIC_IP": "127.77.250.4", "MIRROR_IP": "10.77.250.2", "IMAGE": "image",
            "HARDWARE": str(self.folder / "hardware.json"), "USER": "u", "SSH_KEY": "k", "USER_DATA": "",
            "NOFILE": "1", "NPROC": "1", "PORTS": "22 2222", "JUMP": "{}",
        } | environment  # fmt: skip
        (self.folder / "state.json").write_text(json.dumps(self.state))
        done = subprocess.run(
            ["sh", str(self.folder / "node.sh"), command],
            env=os.environ | {f"GPUPROV_{key}": value for key, value in values.items()},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        self.state = json.loads((self.folder / "state.json").read_text())
        return done

    def deleted(self) -> list[str]:
        """Containers that the OCI runtime was told to delete."""
        path = self.folder / "deleted"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "node.sh").write_text(NODE_SH.read_text().replace("/run/gpuprov", str(tmp_path / "run")))
    (tmp_path / "podman").write_text(PODMAN.format(python=sys.executable, path=str(tmp_path / "state.json")))
    (tmp_path / "runc").write_text(f'#!/bin/sh\necho "$3" >>{tmp_path}/deleted\n')
    (tmp_path / "hardware.json").write_text("{}")
    for name in ("podman", "runc"):
        (tmp_path / name).chmod(0o755)
    return Machine(tmp_path, {"container": {}, "volume": {}, "network": {}, "refuses": ""})


OURS = {"gpuprov.workspace": "/ws/lab", "gpuprov.octet": "250"}


def test_a_node_is_made_and_removed_with_its_volume(machine: Machine) -> None:
    done = machine.run("create")
    assert done.returncode == 0, done.stderr
    assert {key: machine.state["container"][NAME][key] for key in OURS} == OURS
    volume = {"gpuprov.octet": OURS["gpuprov.octet"]}  # podman 4 reads a volume's labels as CSV, which a path may break
    assert (machine.state["volume"], machine.state["network"]) == ({NAME: volume}, {NETWORK: OURS})
    assert machine.run("destroy").returncode == 0
    assert (machine.state["container"], machine.state["volume"]) == ({}, {})
    assert machine.deleted() == [f"id-of-{NAME}"]


def published(machine: Machine) -> list[str]:
    arguments = machine.state["arguments"]
    return [arguments[at + 1] for at, argument in enumerate(arguments) if argument == "--publish"]


def test_behind_a_jump_host_its_ports_are_published_and_those_of_nodes_are_not(machine: Machine) -> None:
    jump = "gpuprov-lab.jump.250"
    done = machine.run("create", ROLE="jump", NAME=jump, NODE="", PUBLIC_IP="127.77.250.3", PRIVATE_IP="10.77.250.3")
    assert done.returncode == 0, done.stderr
    assert published(machine) == ["127.77.250.3:22:22", "127.77.250.3:2222:2222"]
    assert machine.state["arguments"][-2:] == ["image", "/usr/lib/gpuprov-sandbox/jump"]
    assert machine.state["volume"] == {}
    assert machine.run("create", PUBLIC_IP="").returncode == 0
    assert published(machine) == []
    assert machine.run("create").returncode == 0
    assert published(machine) == ["127.77.250.4:22:22"]
    assert machine.run("destroy", ROLE="jump", NAME=jump).returncode == 0
    assert [*machine.state["container"]] == [NAME]


def test_a_dot_in_a_name_is_a_dot(machine: Machine) -> None:
    """podman's filter is a regular expression: gpuprov-lab-dgx-0-250 is somebody else's container."""
    other = NAME.replace(".", "-")
    machine.state["container"] = {other: {"gpuprov.workspace": "/theirs"}, NAME: OURS}
    assert machine.run("destroy").returncode == 0
    assert [*machine.state["container"]] == [other]
    assert machine.deleted() == [f"id-of-{NAME}"]
    machine.state["container"] = {NAME: {"gpuprov.workspace": "/theirs"}, other: OURS}
    done = machine.run("destroy")
    assert (done.returncode, "belongs to /theirs" in done.stderr) == (0, True)
    assert [*machine.state["container"]] == [NAME, other]


def test_a_volume_without_our_label_is_left(machine: Machine) -> None:
    machine.state |= {"container": {NAME: OURS}, "volume": {NAME: {}}}
    done = machine.run("destroy")
    assert (done.returncode, machine.state["container"], machine.state["volume"]) == (0, {}, {NAME: {}})
    assert f"volume {NAME} does not have this cluster's label: it is left" in done.stderr
    done = machine.run("create")
    assert (done.returncode, machine.state["container"], machine.state["volume"]) == (1, {}, {NAME: {}})
    assert "remove it or give this cluster another name" in done.stderr


def test_a_network_without_our_label_is_not_used(machine: Machine) -> None:
    machine.state["network"] = {NETWORK: {}}
    done = machine.run("create")
    assert (done.returncode, machine.state["container"], machine.state["network"]) == (1, {}, {NETWORK: {}})
    assert f"network {NETWORK} exists and does not have a sandbox's label" in done.stderr


def test_a_creation_that_fails_leaves_no_volume(machine: Machine) -> None:
    machine.state["refuses"] = "container"
    assert machine.run("create").returncode != 0
    assert machine.state["volume"] == {}


def test_a_process_that_calls_itself_a_monitor_has_nothing_killed(machine: Machine) -> None:
    """Any local user can start one, with the id of any container."""
    argv = ["conmon", "-c", "read x", "-n", NAME, "-c", "a" * 64]
    forged = subprocess.Popen(argv, executable="/bin/sh", stdin=subprocess.PIPE)
    try:
        assert machine.run("destroy").returncode == 0
        assert machine.deleted() == []
        assert forged.poll() is None
    finally:
        forged.kill()
        forged.wait()
