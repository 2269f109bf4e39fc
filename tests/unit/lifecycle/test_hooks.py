"""Drain and resume commands: real shells on this machine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from provisioner.common.events import Event, Events
from provisioner.lifecycle import hooks
from provisioner.rundir.fleet import Node
from provisioner.transport import process


def node(name: str) -> Node:
    return Node(name, "train", "here", "p4d.24xlarge", f"i-{name}", "", f"203.0.113.{name[-1]}", "10.0.0.7")


NODES = [node("train-0"), node("train-1")]


def run(
    command: str | None,
    folder: Path,
    *,
    deadline_s: float = 30,
    events: Events | None = None,
    reasons: dict[str, str] | None = None,
) -> dict[str, str]:
    return hooks.run(
        "drain", command, NODES, action="quarantine", reasons=reasons or {}, cluster="told", folder=folder,
        deadline_s=deadline_s, events=events or Events(),
    )  # fmt: skip


def test_it_knows_the_node_and_what_it_says_is_told(tmp_path: Path) -> None:
    heard: list[Event] = []
    command = 'echo "$GPUPROV_ACTION $GPUPROV_STEP $GPUPROV_NODE $GPUPROV_ADDRESS $GPUPROV_GROUP $GPUPROV_CLUSTER"'
    command += "; touch $GPUPROV_NODE"
    assert run(command, tmp_path, events=Events(heard.append)) == {}
    assert [event.message for event in heard if event.until] == ["drain command on 2 nodes"]
    assert {(event.node, event.message) for event in heard if event.node} == {
        ("train-0", "drain: quarantine drain train-0 203.0.113.0 train told"),
        ("train-1", "drain: quarantine drain train-1 203.0.113.1 train told"),
    }
    assert {path.name for path in tmp_path.iterdir()} == {"train-0", "train-1"}


def test_a_failure_is_that_nodes_alone_with_its_last_words(tmp_path: Path) -> None:
    command = 'test $GPUPROV_NODE = train-0 || { echo one; echo "a job runs" >&2; exit 3; }'
    assert run(command, tmp_path) == {"train-1": "the drain command ended with status 3: a job runs"}


def test_thousands_of_nodes_are_served_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many commands at once would have more files open than a process may."""
    monkeypatch.setattr(hooks, "AT_ONCE", 2)
    nodes = [node(f"train-{number}") for number in range(5)]
    heard: list[Event] = []
    command = "echo begin >> order; sleep 0.3; echo end >> order; test $GPUPROV_NODE != train-4"
    bad = hooks.run(
        "drain", command, nodes, action="up", reasons={}, cluster="c", folder=tmp_path, deadline_s=30,
        events=Events(heard.append),
    )  # fmt: skip
    assert bad == {"train-4": "the drain command ended with status 1"}
    running = maximum = 0
    for line in (tmp_path / "order").read_text().split():
        running += 1 if line == "begin" else -1
        maximum = max(maximum, running)
    assert (maximum, running) == (2, 0)
    assert [event.message for event in heard if event.until] == ["drain command on 2 nodes"] * 2 + [
        "drain command on 1 node"
    ]


MANY = """
import resource, sys
from pathlib import Path
from provisioner.common.events import Events
from provisioner.rundir.fleet import Node
from provisioner.lifecycle import hooks
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (40, hard))
nodes = [Node(f"n-{i}", "n", "here", "m", f"i-{i}", "", "203.0.113.1", "10.0.0.1") for i in range(40)]
bad = hooks.run("drain", "sleep 1", nodes, action="up", reasons={}, cluster="c", folder=Path(sys.argv[1]),
                deadline_s=60, events=Events())
print(bad, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_the_soft_limit_of_open_files_stops_no_drain(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", MANY, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (f"{{}} {40 * hooks.FILES_EACH + process.OTHER_OPEN_FILES}\n", 0), done


def test_all_nodes_at_once_and_a_deadline(tmp_path: Path) -> None:
    began = time.monotonic()
    failures = run("sleep 60 & wait", tmp_path, deadline_s=0.5)
    assert failures == dict.fromkeys(("train-0", "train-1"), "the drain command did not end within 0.5 s")
    assert time.monotonic() - began < 30


def test_no_command_is_no_failure(tmp_path: Path) -> None:
    assert run(None, tmp_path) == {}


def test_an_interrupt_ends_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[int] = []

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hooks.subprocess.Popen, "wait", interrupted)

    def stop_all(children: Collection[subprocess.Popen[str]], *, grace_s: float) -> None:
        for child in children:
            stopped.append(child.pid)
            child.kill()

    monkeypatch.setattr(hooks.process, "stop_all", stop_all)
    with pytest.raises(KeyboardInterrupt):
        run("sleep 60", tmp_path)
    assert len(stopped) == 2


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("fan\nis\tloud", "fan is loud"),
        ("$(touch owned) `touch owned` \"; touch owned; '", "$(touch owned) `touch owned` \"; touch owned; '"),
        ("a\0b\x1b[31m", "a b [31m"),
        ("é \u202e", "é"),
        ("x" * 500, "x" * 199 + "…"),
        ("", ""),
    ],
)
def test_a_reason_is_one_printable_line_that_no_shell_reads(reason: str, line: str, tmp_path: Path) -> None:
    command = 'printf %s "$GPUPROV_REASON" > $GPUPROV_NODE'
    assert run(command, tmp_path, reasons={"train-0": reason}) == {}
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"train-0": line, "train-1": ""}
