"""One cluster being worked on: who holds it, what is remembered of it, which of the two is meant."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from provisioner.common import directories
from provisioner.common.errors import Exit, GpuprovError, LockedError
from provisioner.common.paths import ClusterPaths, private_dir
from provisioner.lifecycle import machines
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.plan.models import build_plan
from provisioner.rundir import fleet, node_state
from provisioner.rundir.fleet import Node
from provisioner.rundir.node_state import NodeProgress
from provisioner.stack.models import Lock
from tests.support import plans

FILE = """
name: held
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 4}}
"""
STACK = plans.plan(plans.cluster_spec("p4d.24xlarge")).groups[0].stack
HOLDER = """
import sys
from provisioner.lifecycle.session import open_cluster
with open_cluster(sys.argv[1], sandbox=True).exclusively("up"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture
def cluster(file: Path) -> Cluster:
    return open_cluster(file, sandbox=True)


def hold(file: Path) -> subprocess.Popen[str]:
    """A process that holds the cluster until its standard input ends."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_two_holders_are_refused_and_the_second_learns_who_holds(file: Path, cluster: Cluster) -> None:
    child = hold(file)
    try:
        with pytest.raises(LockedError) as caught, cluster.exclusively("down"):
            pass
    finally:
        child.communicate(timeout=30)
    assert f"process {child.pid}" in caught.value.message
    assert "`gpuprov up`" in caught.value.message
    assert caught.value.exit_code == Exit.LOCKED == 5
    with cluster.exclusively("down"):
        pass


def test_the_lock_of_a_killed_holder_is_free(file: Path, cluster: Cluster) -> None:
    child = hold(file)
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=30)
    assert (cluster.paths.root / "holder.json").exists()
    with cluster.exclusively("up"):
        holder = json.loads((cluster.paths.root / "holder.json").read_text())
        assert holder["pid"] == os.getpid()
    assert not (cluster.paths.root / "holder.json").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": 1, "command": "up", "since": "x"}'], ids=repr)
def test_a_holder_that_can_not_be_read_is_still_a_holder(text: str, file: Path, cluster: Cluster) -> None:
    child = hold(file)
    (cluster.paths.root / "holder.json").write_text(text)
    try:
        with pytest.raises(LockedError, match="another run"), cluster.exclusively("down"):
            pass
    finally:
        child.communicate(timeout=30)


def test_a_failed_run_lets_go(cluster: Cluster) -> None:
    with pytest.raises(RuntimeError), cluster.exclusively("up"):
        raise RuntimeError
    with cluster.exclusively("up"):
        pass


def test_every_run_has_a_folder_and_writes_its_events(cluster: Cluster) -> None:
    folders = []
    for message in ("one", "two"):
        with cluster.exclusively("up") as run_dir:
            cluster.events("run", "log", message)
            folders.append(run_dir)
    cluster.events("run", "log", "nobody writes this down")
    assert len(set(folders)) == 2
    messages = [json.loads(line)["message"] for folder in folders for line in (folder / "events.jsonl").open()]
    assert messages == ["one", "gpuprov up: done", "two", "gpuprov up: done"]


@pytest.mark.parametrize(("error", "how"), [(KeyboardInterrupt(), "interrupted"), (GpuprovError("x"), "failed")])
def test_a_run_says_how_it_ended(cluster: Cluster, error: BaseException, how: str) -> None:
    private_dir(cluster.paths.site("a"))
    (cluster.paths.root / "intent.json").write_text("{}")
    with pytest.raises(type(error)), cluster.exclusively("up") as run_dir:
        raise error
    assert json.loads((run_dir / "events.jsonl").read_text().splitlines()[-1])["data"] == {"ended": how}


def test_forget_removes_everything(file: Path, cluster: Cluster) -> None:
    with cluster.exclusively("down") as run_dir:
        (run_dir / "deep").mkdir()
        (cluster.paths.root / "sites").mkdir()
        node_state.note(cluster.paths, report="x")
        cluster.forget()
    assert list(file.parent.iterdir()) == [file]


def test_forget_leaves_the_neighbours(file: Path, cluster: Cluster) -> None:
    neighbour = private_dir(file.parent / ".gpuprov" / "other") / "state.json"
    neighbour.touch()
    with cluster.exclusively("down"):
        cluster.forget()
    assert neighbour.exists()
    assert not cluster.paths.root.exists()


def test_notes_are_merged(cluster: Cluster) -> None:
    private_dir(cluster.paths.root)
    node_state.note(
        cluster.paths, nodes={"train-0": {"stage": "made", "ok": None}, "train-1": {"stage": "made", "ok": None}}
    )
    node_state.note(cluster.paths, nodes={"train-1": {"stage": "verified", "ok": True}}, report="runs/x/report.html")
    state = node_state.load(cluster.paths)
    assert state.nodes == {"train-0": NodeProgress("made", None), "train-1": NodeProgress("verified", True)}
    assert (state.report, state.failed) == (str(cluster.paths.root / "runs/x/report.html"), {})


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", "null", "\x00", '{"nodes": 7}', '{"nodes": {"train-0": 7}}'], ids=repr
)
def test_a_damaged_state_is_no_state(text: str, cluster: Cluster) -> None:
    from provisioner.lifecycle.status import status

    private_dir(cluster.paths.root)
    (cluster.paths.root / "state.json").write_text(text)
    assert [row["stage"] for row in status(cluster, ask=False).to_json()["nodes"]] == ["planned"] * 4
    node_state.note(cluster.paths, nodes={"train-0": {"stage": "made", "ok": None}})
    assert node_state.load(cluster.paths).nodes["train-0"] == NodeProgress("made", None)


NOTER = """
import sys
from pathlib import Path
from provisioner.rundir import node_state
from provisioner.common.paths import ClusterPaths
paths = ClusterPaths(Path(sys.argv[1]), "held", sandbox=True)
print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    node_state.note(paths, nodes={f"{sys.argv[2]}-{number}": {"stage": "made", "ok": None}})
    node_state.note_failed(paths, [], {f"{sys.argv[2]}-{number}": "no capacity"})
"""


def test_no_note_of_two_processes_is_lost(file: Path, cluster: Cluster) -> None:
    """`verify` notes verdicts while another command is running: it holds no lock of the cluster."""
    private_dir(cluster.paths.root)
    node_state.note(cluster.paths, report=None)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    noters = [subprocess.Popen([sys.executable, "-c", NOTER, str(file), name], **pipes) for name in "ab"]  # type: ignore[call-overload]
    for noter in noters:
        assert noter.stdout.readline() == "ready\n"
    for noter in noters:
        noter.stdin.write("go\n")
        noter.stdin.flush()
    for noter in noters:
        noter.communicate(timeout=120)
        assert noter.returncode == 0
    names = {f"{name}-{number}" for name in "ab" for number in range(40)}
    state = node_state.load(cluster.paths)
    assert (set(state.nodes), set(state.failed)) == (names, names)


def test_a_state_that_another_process_holds_is_an_error_that_names_its_lock(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_state, "LOCK_TIMEOUT_S", 0.0)
    private_dir(cluster.paths.root)
    with (
        FileLock(cluster.paths.root / node_state.LOCK),
        pytest.raises(LockedError, match="locked by another process") as caught,
    ):
        node_state.note(cluster.paths, report=None)
    assert caught.value.where.endswith("state.json.lock")


def test_a_run_goes_on_when_its_events_cannot_be_written(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The events file is evidence, not the work; a person learns of it once."""
    folder, messages = private_dir(cluster.paths.runs / "1"), list[str]()
    append = directories.append

    def refusing(path: Path) -> io.BufferedWriter:
        if path.name != "events.jsonl":
            return append(path)
        return open(path, "ab", opener=lambda *_: os.open("/dev/full", os.O_WRONLY))

    monkeypatch.setattr(directories, "append", refusing)
    monkeypatch.setattr("provisioner.lifecycle.session._run_dir", lambda _: folder)
    cluster.events.subscribe(lambda event: messages.append(event.message))
    with cluster.exclusively("up"):
        cluster.events("run", "log", "working")
    reason = f"the log is incomplete: {folder}/events.jsonl: No space left on device"
    assert messages == ["working", reason, "gpuprov up: done"]


def make_run_directory(file: Path, *, sandbox: bool) -> None:
    private_dir(ClusterPaths(file, "held", sandbox=sandbox).root)


def test_where_only_the_sandbox_is_there_it_is_meant(file: Path) -> None:
    assert not open_cluster(file).sandbox
    make_run_directory(file, sandbox=True)
    assert open_cluster(file).sandbox
    assert not open_cluster(file, sandbox=False).sandbox


def test_where_both_are_there_one_must_be_named(file: Path) -> None:
    make_run_directory(file, sandbox=True)
    make_run_directory(file, sandbox=False)
    for sandbox in (False, True):
        ClusterPaths(file, "held", sandbox=sandbox).intent.touch()
    with pytest.raises(GpuprovError, match="as a real cluster and as a sandbox") as caught:
        open_cluster(file)
    assert "--sandbox" in caught.value.hint
    assert open_cluster(file, sandbox=True).sandbox
    assert not open_cluster(file, sandbox=False).sandbox


def test_a_node_by_name_or_the_nearest_names(cluster: Cluster) -> None:
    with pytest.raises(GpuprovError, match="there is no node train-0") as caught:
        cluster.node("train-0")
    assert "gpuprov up" in caught.value.hint
    with pytest.raises(GpuprovError, match="there is no node train-99") as caught:
        cluster.node("train-99")
    assert "train-0" in caught.value.hint
    private_dir(cluster.paths.root)
    nodes = [Node(f"train-{i}", "train", "here", "p4d.24xlarge", f"i-{i}", "", "203.0.113.1", "") for i in range(2)]
    fleet.save(cluster.paths, nodes)
    assert cluster.node("train-1") == nodes[1]
    with pytest.raises(GpuprovError) as caught:
        cluster.node("tarin-1")
    assert caught.value.hint.startswith("did you mean train-1")


def test_a_lock_is_asked_for_where_there_is_none(cluster: Cluster) -> None:
    with pytest.raises(GpuprovError, match=r"no cluster\.lock yet"):
        build_plan(cluster.spec, cluster.lock)


def intended(file: Path, *, sandbox: bool = False) -> None:
    """A run that is about to make machines of what the file says now."""
    cluster = open_cluster(file, sandbox=sandbox)
    lock = Lock(request={}, simulated=True, groups={"train": STACK})
    plan = build_plan(cluster.spec, lock)
    private_dir(cluster.paths.site("here"))
    machines.write_intent(cluster, plan)


@pytest.mark.parametrize("sandbox", [None, False])
def test_a_name_that_was_edited_while_machines_run_is_refused(file: Path, *, sandbox: bool | None) -> None:
    """`down` would remove nothing, `status` know nothing, and `up` create a second fleet beside the first."""
    intended(file)
    file.write_text(FILE.replace("name: held", "name: renamed"))
    with pytest.raises(GpuprovError, match=r"and .gpuprov/held has .*was the cluster renamed") as caught:
        open_cluster(file, sandbox=sandbox)
    assert caught.value.exit_code == Exit.BAD_INPUT
    assert "has machines that this file created as cluster held:" in caught.value.message
    assert "put `name: held` back" in caught.value.hint
    file.write_text(FILE)
    assert open_cluster(file, sandbox=sandbox).paths.made(), "as the hint says"


def test_another_name_in_another_file_is_another_cluster(file: Path) -> None:
    intended(file)
    other = file.with_name("second.yaml")
    other.write_text(FILE.replace("name: held", "name: second"))
    assert not open_cluster(other, sandbox=False).paths.made()
    file.write_text(FILE.replace("name: held", "name: renamed"))
    assert open_cluster(file, sandbox=True).sandbox, "the sandbox of a new name is none of the real fleet's business"


class Refused(GpuprovError):
    pass


def test_a_refused_command_leaves_nothing(file: Path, cluster: Cluster) -> None:
    with pytest.raises(Refused), cluster.exclusively("plan"):
        private_dir(cluster.paths.site("here"))
        raise Refused("no account")
    assert not (file.parent / ".gpuprov").exists()


def test_a_refused_command_leaves_what_its_error_points_to(cluster: Cluster) -> None:
    with pytest.raises(Refused), cluster.exclusively("up") as run_dir:
        raise Refused("terraform init failed", hint=f"the whole log: {run_dir}/terraform-here.log")
    assert cluster.paths.runs.is_dir()


@pytest.mark.parametrize("name", ["intent.json", "cluster.lock", "nodes.json", "sites/here/terraform.tfstate"])
def test_a_refused_command_leaves_what_was_there(name: str, cluster: Cluster) -> None:
    private_dir(cluster.paths.site("here"))
    (cluster.paths.root / name).write_text("[]")
    with pytest.raises(Refused), cluster.exclusively("up"):
        raise Refused("no")
    assert (cluster.paths.root / name).exists()


def test_what_was_made_while_a_command_was_refused_stays(cluster: Cluster) -> None:
    with pytest.raises(Refused), cluster.exclusively("up"):
        cluster.paths.intent.write_text("{}")
        raise Refused("no")
    assert cluster.paths.intent.exists()


def test_a_look_leaves_the_providers_that_terraform_fetched_and_nothing_else(file: Path) -> None:
    real = open_cluster(file, sandbox=False)
    with real.exclusively("plan"):
        for name in (".terraform/providers", "module", "hardware"):
            private_dir(real.paths.site("here") / name)
        (real.paths.site("here") / "main.tf").touch()
        real.only_looked()
    remaining_paths = {str(p.relative_to(real.paths.root)) for p in real.paths.root.rglob("*")}
    assert remaining_paths == {"sites", "sites/here", "sites/here/.terraform", "sites/here/.terraform/providers"}
    assert real.paths.untouched()
    private_dir(ClusterPaths(file, "held", sandbox=True).root)
    ClusterPaths(file, "held", sandbox=True).intent.touch()
    assert open_cluster(file).sandbox  # nobody is asked which: the other one was only looked at
