"""A run of the playbook as the lines of its worker tell it: which node failed on what, and when Ansible did not run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.common.errors import ConfigureError
from provisioner.common.events import Event, Events
from provisioner.common.paths import ClusterPaths, private_dir
from provisioner.configure import run
from provisioner.configure.drift import Pass
from provisioner.configure.run import Outcome
from provisioner.rundir.fleet import Node
from provisioner.transport import ssh_sockets

NODES = [Node(f"train-{i}", "train", "here", "p4d.24xlarge", f"i-{i}", "", "203.0.113.7", "10.0.0.7") for i in range(2)]


class Worker:
    """Stands for provisioner.configure.worker: `lines` are what it prints, `status` how it ends."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[dict[str, Any]] = []
        self.status, self.complaints, self.request = 0, "", dict[str, Any]()
        self.events: list[Event] = []
        self.paths = ClusterPaths(folder / "cluster.yaml", "vision", sandbox=True)
        self.run_dir = private_dir(self.paths.runs / "1")
        monkeypatch.setattr(run, "follow", self.follow)

    def follow(self, _: list[str], on_line: Callable[[str], None], *, stdin_text: str, **__: Any) -> Any:
        self.request = json.loads(stdin_text)
        for line in self.lines:
            on_line(json.dumps(line))
        return SimpleNamespace(status=self.status, complaints=[self.complaints])

    def limit(self) -> list[str]:
        """The nodes that Ansible is limited to, as it reads them (`--limit @FILE`)."""
        return split_limit(str(self.request["limit"]))

    def tells(self, event: str, host: str | None, task: str = "", message: str = "", *, changed: bool = False) -> None:
        self.lines.append({"event": event, "host": host, "task": task, "changed": changed, "message": message})

    def run(self, *tags: str) -> dict[str, Outcome]:
        events = Events(self.events.append)
        inventory = self.paths.root / "inventory.yml"
        return run.configure(self.paths, NODES, inventory, self.run_dir, events, Pass(frozenset(tags)), push=True)


def split_limit(argument: str) -> list[str]:
    from ansible.inventory.manager import split_host_pattern

    (file,) = split_host_pattern(argument)
    assert file.startswith("@")
    return Path(file[1:]).read_text(encoding="utf-8").split()


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(tmp_path, monkeypatch)


def test_what_was_done_and_changed_is_counted(worker: Worker) -> None:
    worker.tells("start", "train-0", "base : Do it")
    worker.tells("ok", "train-0", "base : Do it", changed=True)
    worker.tells("skipped", "train-0", "base : Leave it")
    outcomes = worker.run()
    assert outcomes == {"train-0": Outcome(ok=2, changed=1), "train-1": Outcome()}
    run.refuse_failures(outcomes, worker.run_dir)
    assert (worker.limit(), "tags" in worker.request) == (["train-0", "train-1"], False)


def test_ten_thousand_nodes_fit_into_the_arguments_of_ansible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux takes at most 128 KiB in one argument (MAX_ARG_STRLEN), and the names of so many nodes are more. The folder
    has everything at which Ansible would split a path."""
    worker = Worker(private_dir(tmp_path / "a, b:c [d] $e"), monkeypatch)
    names = [f"training-{number}" for number in range(10_000)]
    assert sum(len(name) + 1 for name in names) > 128 << 10
    nodes = [Node(name, "training", "here", "p4d.24xlarge", name, "", "203.0.113.7", "10.0.0.7") for name in names]
    run.configure(worker.paths, nodes, worker.paths.inventory, worker.run_dir, Events(), push=True)
    assert worker.limit() == names
    assert not worker.request["keep_events"], "a file for each of them would be a million"
    assert max(len(str(value)) for value in worker.request.values()) < 4 << 10


def test_ansible_shares_the_connections_of_its_run(worker: Worker) -> None:
    """Those of the configuration in the run directory end with whichever run is killed."""
    private_dir(worker.paths.ssh)
    (worker.paths.ssh / "config").write_text(f'Host *\n  ControlPath "{ssh_sockets.control_dir(worker.paths)}/%C"\n')
    worker.run()
    config = ssh_sockets.run_config(worker.paths)
    assert worker.request["envvars"]["ANSIBLE_SSH_ARGS"] == f"-F {config}"
    assert config.parent.parent == ssh_sockets.control_dir(worker.paths)


def test_only_the_roles_that_are_asked_for_run(worker: Worker) -> None:
    worker.run("driver", "base")
    assert worker.request["tags"] == "base,driver"
    assert worker.request["keep_events"]


@pytest.mark.parametrize("kind", ["failed", "unreachable"])
def test_a_node_that_failed_or_went_away_is_a_failure(kind: str, worker: Worker) -> None:
    """Taken for one on which nothing had to be done, it would be judged, and might be proven, half configured."""
    worker.tells("ok", "train-0", "base : Do it")
    worker.tells(kind, "train-1", "base : Do it", "connection timed out")
    worker.status = 4
    outcomes = worker.run()
    assert outcomes["train-0"].failed == []
    assert outcomes["train-1"].failed == ["base : Do it: connection timed out"]
    assert [(e.kind, e.node) for e in worker.events if e.kind == "failed"] == [("failed", "train-1")]
    with pytest.raises(ConfigureError, match="train-1: base : Do it: connection timed out"):
        run.refuse_failures(outcomes, worker.run_dir)


def test_the_same_cause_is_said_once(worker: Worker) -> None:
    for node in ("train-0", "train-1"):
        worker.tells("failed", node, "driver : Install it", "E: no space left")
    with pytest.raises(ConfigureError) as caught:
        run.refuse_failures(worker.run(), worker.run_dir)
    assert caught.value.message == "train-0, train-1: driver : Install it: E: no space left"


def test_an_ansible_that_did_not_run_is_no_success(worker: Worker) -> None:
    worker.status, worker.complaints = 4, "ERROR! the role 'base' was not found"
    with pytest.raises(ConfigureError, match="the role 'base' was not found"):
        worker.run()


def test_of_a_traceback_the_cause_is_said(worker: Worker) -> None:
    """Seen with a run directory that is full."""
    worker.status = 1
    worker.complaints = (
        "Traceback (most recent call last):\n"
        '  File "awx_display.py", line 131, in set\n'
        "    with os.fdopen(os.open(write_location, os.O_WRONLY | os.O_CREAT), 'w') as f:\n"
        "OSError: [Errno 28] No space left on device\n"
    )
    with pytest.raises(ConfigureError) as caught:
        worker.run()
    assert caught.value.message == "Ansible did not start: OSError: [Errno 28] No space left on device"


def test_what_another_host_says_is_of_no_node(worker: Worker) -> None:
    worker.tells("failed", "train-9", "base : Do it", "x")
    worker.tells("error", None, message="a plugin is missing")
    assert worker.run() == {"train-0": Outcome(), "train-1": Outcome()}
    assert [e.message for e in worker.events if e.kind == "warning"] == ["a plugin is missing"]


def test_each_call_of_a_run_has_a_folder_of_its_own(worker: Worker) -> None:
    worker.run()
    worker.run()
    assert {path.name for path in worker.run_dir.iterdir()} == {"ansible", "ansible-2"}


class Remote(Worker):
    """Stands for provisioner.configure.streams, and for the worker of a push after it: `pushed` are its lines."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch)
        self.pushed: list[dict[str, Any]] = []
        self.pushed_status = 0
        self.requests: dict[str, Any] = {}

    def follow(self, argv: list[str], on_line: Callable[[str], None], *, stdin_text: str, **__: Any) -> Any:
        module = argv[-1].rpartition(".")[2]
        self.requests[module] = json.loads(stdin_text)
        for line in self.lines if module == "streams" else self.pushed:
            on_line(json.dumps(line))
        status = self.status if module == "streams" else self.pushed_status
        return SimpleNamespace(status=status, complaints=[self.complaints])

    def go(self, run_pass: Pass = Pass()) -> dict[str, Outcome]:  # noqa: B008 - a tuple
        events = Events(self.events.append)
        return run.configure(self.paths, NODES, self.paths.inventory, self.run_dir, events, run_pass)

    def choices(self) -> list[str]:
        return [event.message for event in self.events if event.data.get("method")]


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Remote:
    return Remote(tmp_path, monkeypatch)


def test_nodes_run_the_roles_themselves(remote: Remote) -> None:
    for name in ("train-0", "train-1"):
        remote.tells("ok", name, "base : Do it", changed=True)
        remote.tells("done", name)
    assert remote.go(Pass(frozenset({"base"}), "install")) == dict.fromkeys(("train-0", "train-1"), Outcome(1, 1))
    assert remote.choices() == ["train: Ansible runs on 2 nodes"]
    request = remote.requests["streams"]
    assert (list(remote.requests), list(request["nodes"])) == (["streams"], ["train-0", "train-1"])
    assert (request["kwargs"]["tags"], request["kwargs"]["skip_tags"]) == ("base", "configure")


def test_a_node_that_cannot_is_pushed_and_the_reason_is_told(remote: Remote) -> None:
    remote.tells("done", "train-0")
    remote.tells("unable", "train-1", message="Python 3.10.12 is older than 3.11, which ansible-core needs")
    remote.pushed = [{"event": "ok", "host": "train-1", "task": "base : Do it"}]
    assert remote.go() == {"train-0": Outcome(), "train-1": Outcome(1)}
    assert split_limit(remote.requests["worker"]["limit"]) == ["train-1"]
    assert remote.choices()[1] == ("train: push to 1 node: Python 3.10.12 is older than 3.11, which ansible-core needs")


def test_what_a_node_said_before_it_is_pushed_does_not_count(remote: Remote) -> None:
    """A reboot comes in the middle of the roles."""
    remote.tells("ok", "train-0", "base : Do it", changed=True)
    for name in ("train-0", "train-1"):
        remote.tells("unable", name, message="it has to be rebooted")
    remote.pushed = [{"event": "failed", "host": "train-0", "task": "base : Do it", "message": "x"}]
    remote.pushed_status = 2
    assert remote.go() == {"train-0": Outcome(failed=["base : Do it: x"]), "train-1": Outcome()}


def test_a_node_without_a_result_has_failed(remote: Remote) -> None:
    remote.tells("ok", "train-0", "base : Do it")
    remote.tells("done", "train-1")
    assert remote.go()["train-0"].failed == ["Run Ansible on the node: no result"]


def test_streams_that_crash_are_no_success_though_a_node_failed(remote: Remote) -> None:
    remote.tells("failed", "train-0", "base : Do it", "x")
    remote.status, remote.complaints = 1, "Traceback (most recent call last):\nMemoryError"
    with pytest.raises(ConfigureError, match="MemoryError"):
        remote.go()


def test_push_is_what_cluster_yaml_says(remote: Remote) -> None:
    run.configure(remote.paths, NODES, remote.paths.inventory, remote.run_dir, Events(remote.events.append), push=True)
    assert list(remote.requests) == ["worker"]
    assert remote.choices() == ["train: push to 2 nodes: cluster.yaml has configure.push"]


def test_this_very_machine_is_pushed_to(remote: Remote) -> None:
    private_dir(remote.paths.ssh)
    (remote.paths.ssh / "local").write_text("train-0\n")
    remote.tells("done", "train-1")
    remote.go()
    assert list(remote.requests["streams"]["nodes"]) == ["train-1"]
    assert split_limit(remote.requests["worker"]["limit"]) == ["train-0"]
