"""Nodes that run the roles themselves: ansible-runner's real worker on this machine, by a pipe instead of ssh."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.configure import node_archive, node_supervisor, run, streams
from provisioner.configure.node_archive import NodeArchive

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a node's worker is root")

WAIT_S = 60.0
SHELL = ["/bin/sh", "-c"]


def play(*tasks: dict[str, Any]) -> bytes:
    head = {"hosts": "all", "gather_facts": False, "become": True, "strategy": "free"}
    return json.dumps([{**head, "tasks": list(tasks)}]).encode()


OK = {"name": "Say it", "ansible.builtin.command": "echo done"}
BAD = {"name": "Break", "ansible.builtin.command": "sh -c 'echo no space >&2; exit 3'"}


class Node:
    """This machine as a node, its folders in `folder`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.patch, self.capsys = folder, monkeypatch, capsys
        self.archives, self.private, self.run_dir = folder / "kept", folder / "private", folder / "run"
        self.run_dir.mkdir()
        monkeypatch.setattr(streams, "FOLDER", str(self.archives))
        monkeypatch.setattr(streams, "PRIVATE", str(self.private))
        self.inventory = folder / "inventory.yml"
        variables = {"gpuprov_group": {"__ansible_unsafe": "train"}}
        hosts = {name: {"ansible_connection": "local"} for name in ("here", "there")}
        document = {"all": {"children": {"train": {"hosts": hosts, "vars": variables}}, "vars": {}}}
        self.inventory.write_text(json.dumps(document))
        self.argv: list[str] = SHELL

    def has(self, *tasks: dict[str, Any]) -> NodeArchive:
        """Have the archive's playbook be these tasks."""
        content, manifest = node_archive.pack({**self.files(), "ansible/playbooks/site.yml": play(*tasks)})
        file = self.folder / "archive"
        file.write_bytes(content)
        archive = NodeArchive(file, hashlib.sha256(content).hexdigest(), manifest)
        self.patch.setattr(node_archive, "build", lambda: archive)
        return archive

    def files(self) -> dict[str, bytes]:
        if not _FILES:
            _FILES.update(node_archive.members())
        return _FILES

    def streams(self, **nodes: list[str]) -> streams.Streams:
        request = {
            "nodes": nodes or {"here": self.argv}, "inventory": str(self.inventory), "folder": str(self.run_dir),
            "keep_events": True, "kwargs": {"envvars": run.SETTINGS},
        }  # fmt: skip
        return streams.Streams(request)

    def run(self, **nodes: list[str]) -> list[dict[str, Any]]:
        """What the nodes' streams say."""
        asyncio.run(self.streams(**nodes).all())
        return [json.loads(line) for line in self.capsys.readouterr().out.splitlines()]

    def root(self) -> Path:
        (root,) = self.archives.iterdir()
        return root

    def processes(self) -> list[str]:
        """Command lines of processes that run from the archive."""
        matches = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                command = entry.read_bytes().replace(b"\0", b" ").decode()
                if str(self.archives) in command:
                    matches.append(command)
        return matches


_FILES: dict[str, bytes] = {}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Node]:
    """A node; nothing of it runs in the end."""
    monkeypatch.setattr(node_archive, "PRESET", 0)  # a tenth of the time
    local_node = Node(tmp_path, monkeypatch, capsys)
    yield local_node
    wait_for(lambda: not local_node.processes())


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


def of(lines: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == event]


def test_the_roles_run_on_the_node_and_it_keeps_the_archive(node: Node) -> None:
    node.has(OK)
    lines = node.run()
    assert [(line["event"], line.get("task")) for line in lines] == [
        ("start", "Say it"), ("ok", "Say it"), ("done", None),
    ]  # fmt: skip
    assert not node.private.exists(), "what was sent does not stay"
    assert node.root().stat().st_mode & 0o777 == 0o700
    node.patch.setattr(NodeArchive, "content", lambda _: pytest.fail("it is sent once"))
    assert of(node.run(), "done")
    assert "Say it" in (node.run_dir / "artifacts" / "here" / "stdout").read_text()


def test_another_archive_replaces_the_old_one(node: Node) -> None:
    node.has(OK)
    node.run()
    archive = node.has({**OK, "name": "Another"})
    assert of(node.run(), "ok")[0]["task"] == "Another"
    assert node.root().name == archive.manifest[:32]


def test_a_task_that_fails_is_the_nodes_failure_with_its_cause(node: Node) -> None:
    node.has(OK, BAD, OK)
    lines = node.run()
    (failed,) = of(lines, "failed")
    assert (failed["host"], failed["task"]) == ("here", "Break")
    assert "no space" in failed["message"]
    assert (of(lines, "done"), len(of(lines, "ok"))) == ([], 1)
    assert any("no space" in file.read_text() for file in (node.run_dir / "artifacts/here/job_events").iterdir())


def test_a_playbook_that_ansible_refuses_is_a_failure(node: Node) -> None:
    node.has({"name": "x", "no_such_module": "y"})
    (failed,) = of(node.run(), "failed")
    assert "no_such_module" in failed["message"]


def test_an_archive_that_is_not_the_announced_one_is_refused(node: Node) -> None:
    archive = node.has(OK)
    node.patch.setattr(NodeArchive, "content", lambda self: archive.file.read_bytes()[:-1] + b"x")
    lines = node.run()
    assert "refused" in of(lines, "failed")[0]["message"] and "sha256" in of(lines, "failed")[0]["message"]
    assert not list(node.archives.glob("*"))


def test_a_kept_archive_that_was_changed_is_named_and_replaced(node: Node) -> None:
    node.has(OK)
    node.run()
    (node.root() / "lib/ansible/constants.py").write_text("raise SystemExit('owned')\n")
    lines = node.run()
    assert "lib/ansible/constants.py was changed" in of(lines, "note")[0]["message"]
    assert of(lines, "done")


@pytest.mark.parametrize("change", ["well", "changed", "added", "missing", "link", "folder", "manifest"])
def test_whatever_changes_in_a_kept_archive_is_seen(tmp_path: Path, change: str) -> None:
    content, manifest = node_archive.pack({"lib/a.py": b"1", "lib/b.py": b"2"})
    root, file = tmp_path / "kept" / "1", tmp_path / "kept" / "1" / "lib" / "b.py"
    node_supervisor.unpack(content, {"digest": hashlib.sha256(content).hexdigest(), "manifest": manifest}, str(root))
    (root / "lib" / "__pycache__").mkdir()
    (root / "lib" / "__pycache__" / "b.cpython-311.pyc").touch()
    expected = ""
    if change == "changed":
        file.write_text("3")
        expected = "lib/b.py was changed"
    elif change == "added":
        file.with_name("c.py").touch()
        expected = "lib/c.py does not belong to it"
    elif change == "missing":
        file.unlink()
        expected = "lib/b.py is missing"
    elif change == "link":
        file.rename(tmp_path / "away")
        file.symlink_to(tmp_path / "away")
        expected = "lib/b.py does not belong to it"
    elif change == "folder":
        root.chmod(0o777)
        expected = "the folder is not root's alone"
    elif change == "manifest":
        (root / "MANIFEST").write_text("")
        expected = "its MANIFEST is another one"
    assert node_supervisor.problem(str(root), manifest) == expected


def test_a_node_whose_python_is_too_old_says_so(node: Node) -> None:
    node.has(OK)
    node.patch.setattr(node_archive, "PYTHON_MIN", (9, 1))
    (line,) = node.run()
    assert (line["event"], line["host"]) == ("unable", "here")
    assert "is older than 9.1" in line["message"]


def test_a_node_whose_python_lacks_a_part_says_so(node: Node) -> None:
    node.has(OK)
    node.patch.setattr(node_archive, "PYTHON_MODULES", ("json", "_no_such_part"))
    (line,) = node.run()
    assert "has no module _no_such_part" in line["message"]


def test_a_node_without_python_is_named_and_others_go_on(node: Node) -> None:
    node.has(OK)
    missing = ["/bin/sh", "-c", "exec /no/such/python3"]
    lines = node.run(here=SHELL, there=missing)
    (failed,) = of(lines, "failed")
    assert (failed["host"], "python3 is missing" in failed["message"]) == ("there", True)
    assert [line["host"] for line in of(lines, "done")] == ["here"]


def test_a_reboot_is_left_to_a_push(node: Node) -> None:
    node.has(OK, {"name": "Reboot", "ansible.builtin.reboot": {}})
    lines = node.run()
    assert "rebooted" in of(lines, "unable")[0]["message"]
    assert not of(lines, "failed") + of(lines, "done")


def test_a_connection_that_ends_ends_ansible_there(node: Node) -> None:
    """As SIGKILL of gpuprov does it: nothing is told to the node, its end of the connection closes."""
    reached = node.folder / "reached"
    node.has({"name": "Long", "ansible.builtin.command": f"sh -c 'touch {reached}; exec sleep 1000'"})

    async def cut() -> None:
        task = asyncio.create_task(node.streams().all())
        while not reached.exists():
            await asyncio.sleep(0.05)
        assert node.processes()
        os.kill(connection(node), signal.SIGKILL)
        await asyncio.wait_for(task, WAIT_S)

    pipe = node.folder / "pipe"
    node.argv = ["/bin/sh", "-c", f'echo $$ > {pipe}; cat | /bin/sh -c "$0"']
    asyncio.run(cut())
    wait_for(lambda: not node.processes())
    wait_for(lambda: not sleeping())


def connection(node: Node) -> int:
    """The `cat` that stands for it."""
    shell = int((node.folder / "pipe").read_text())
    children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
    return next(int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == "cat")


def sleeping() -> list[str]:
    matches = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if entry.read_bytes() == b"sleep\x001000\x00":
                matches.append(entry.parent.name)
    return matches


def test_a_worker_that_is_killed_is_named(node: Node) -> None:
    reached = node.folder / "reached"
    node.has({"name": "Long", "ansible.builtin.command": f"sh -c 'touch {reached}; exec sleep 1000'"})

    async def kill() -> None:
        task = asyncio.create_task(node.streams().all())
        while not reached.exists():
            await asyncio.sleep(0.05)
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if f"{node.root()}/node_worker.py".encode() in entry.read_bytes():
                    os.kill(int(entry.parent.name), signal.SIGKILL)
        await asyncio.wait_for(task, WAIT_S)

    asyncio.run(kill())
    lines = [json.loads(line) for line in node.capsys.readouterr().out.splitlines()]
    assert "killed by signal 9" in of(lines, "failed")[0]["message"]
    wait_for(lambda: not sleeping())


def test_a_package_tool_is_not_cut_off(node: Node) -> None:
    """The module that waits for it stays too; Ansible does not."""
    fake, reached, through = node.folder / "apt-get", node.folder / "reached", node.folder / "through"
    shutil.copy("/bin/sh", fake)
    script = node.folder / "script"
    gate = node.folder / "gate"
    os.mkfifo(gate)
    script.write_text(f"touch {reached}; read x < {gate}; touch {through}")
    node.has({"name": "Install", "ansible.builtin.command": f"{fake} {script}"})

    async def interrupt() -> None:
        task = asyncio.create_task(node.streams().all())
        while not reached.exists():
            await asyncio.sleep(0.05)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(interrupt())
    wait_for(lambda: not node.processes())
    assert not through.exists()
    gate.write_text("go on\n")
    wait_for(through.exists)


def fake_ssh(node: Node, lost: int) -> list[str]:
    """A program of that name that loses its first connections, and runs the command here after that."""
    program, count = node.folder / "ssh", node.folder / "count"
    text = f"""#!/bin/sh
for last; do :; done
[ "$last" = true ] && {{ echo 'ssh: connect to host here port 22: No route to host' >&2; exit 255; }}
echo >> {count}
[ $(wc -l < {count}) -le {lost} ] && exit 255
exec /bin/sh -c "$last"
"""
    program.write_text(text)
    program.chmod(0o755)
    return [str(program), "here"]


def test_a_lost_connection_is_made_again(node: Node) -> None:
    node.has(OK)
    lines = node.run(here=fake_ssh(node, 1))
    assert "No route to host" in of(lines, "retry")[0]["message"]
    assert of(lines, "done")


def test_a_node_that_is_not_reached_is_named_with_the_words_of_ssh(node: Node) -> None:
    node.has(OK)
    lines = node.run(here=fake_ssh(node, streams.TRIES))
    assert len(of(lines, "retry")) == streams.TRIES - 1
    assert "No route to host" in of(lines, "unreachable")[0]["message"]


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("head -c 20000000 /dev/zero", "a line of more than 8 MiB"),
        ("echo '{\"gpuprov\": [1]}'", "the answer of the supervisor is malformed"),
        ('echo \'{"gpuprov": {"error": "no space left"}}\'', "no space left"),
        ("exit 3", "exit status 3"),
    ],
)
def test_what_a_node_answers_is_bounded_and_no_traceback(node: Node, output: str, reason: str) -> None:
    node.has(OK)
    (failed,) = node.run(here=["/bin/sh", "-c", f"exec 0</dev/null; {output}"])
    assert (failed["event"], reason in failed["message"]) == ("failed", True), failed


def test_a_node_names_no_other_node_and_no_file(node: Node) -> None:
    node.has(OK)
    event = {
        "event": "runner_on_failed", "counter": 1, "uuid": "../../../../evil", "stdout": "x",
        "event_data": {"host": "there", "task": "Lie\x1b[2J", "res": {"msg": "m"}},
    }  # fmt: skip
    lines = ['{"gpuprov": {"ready": "3"}}', json.dumps(event), json.dumps({"zipfile": 5}), json.dumps({"eof": True})]
    script = "; ".join(f"echo {shlex.quote(line)}" for line in lines)
    lines_of_node = node.run(here=["/bin/sh", "-c", script])
    assert [(line["event"], line["host"], line["task"]) for line in lines_of_node] == [
        ("failed", "here", "Lie\\x1b[2J")
    ]
    written = [str(file.relative_to(node.run_dir)) for file in node.run_dir.rglob("*") if file.is_file()]
    assert sorted(written) == ["artifacts/here/job_events/1.json", "artifacts/here/stdout"]


def test_as_many_streams_as_the_machine_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(streams, "available_memory", lambda: 64 << 30)
    assert streams.streams_at_once(1000) == (1024 - 256) // 4
    monkeypatch.setattr(streams, "available_memory", lambda: 80 << 20)
    assert (streams.streams_at_once(1000), streams.streams_at_once(3)) == (10, 3)
