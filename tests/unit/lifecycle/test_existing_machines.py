"""How gpuprov gets in to machines that exist, and what it says where it can't."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from provisioner.common.errors import LockedError
from provisioner.common.events import Events
from provisioner.common.paths import ClusterPaths
from provisioner.machines import existing
from provisioner.machines.existing import Way
from provisioner.rundir.fleet import Node
from provisioner.transport import process, ssh_config

NODE = Node("train-0", "train", "rack", "dgx-h100", "dgx01.lab", "", "10.0.0.1", "10.0.0.1", port=2222)
HOSTS = frozenset({"dgx01.lab", "dgx02.lab"})
DENIED = (255, "ops@10.0.0.1: Permission denied (publickey).")
OK = (0, "")
UNDONE = (0, 'gpuprov:{"done": [], "stays": []}')
BEGUN = (0, 'banner\ngpuprov:{"ok": true}')


class Told:
    """The answers of the machine, one after the other, and what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, str]) -> None:
        self.answers, self.requests = list(answers), list[tuple[list[str], str]]()
        monkeypatch.setattr(existing, "_call", self.call)

    def call(self, argv: Sequence[str], stdin: str = "", deadline_s: float = 0) -> tuple[int, str]:
        self.requests.append((list(argv), stdin))
        return self.answers.pop(0)


@pytest.fixture
def transport(tmp_path: Path) -> Way:
    paths = ClusterPaths(tmp_path / "cluster.yaml", "lab", sandbox=False)
    users, carried = {"train-0": "ops"}, {"train-0": "ssh -W %h jump"}
    return Way(paths, users, carried, lambda: "ssh-ed25519 AAAA gpuprov-x", lambda: "abc", HOSTS)


def test_a_key_that_is_known_is_not_brought_again(transport: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Told(monkeypatch, OK, BEGUN)
    assert existing.admit(transport, [NODE], Events()) == {}
    assert len(machine.requests) == 2
    script = machine.requests[1][1]
    assert '\\"host\\": \\"dgx01.lab\\"' in script and '\\"others\\": [\\"dgx02.lab\\"]' in script


def test_the_callers_own_ssh_brings_the_key_over_the_pinned_host_key(
    transport: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Told(monkeypatch, DENIED, OK, OK, BEGUN)
    assert existing.admit(transport, [NODE], Events()) == {}
    argv, script = machine.requests[1]
    assert "-F" not in argv, "the caller's own configuration"
    assert {"StrictHostKeyChecking=yes", f"UserKnownHostsFile={transport.paths.known_hosts}"} <= set(argv)
    assert {"HostKeyAlias=train-0.lab", "BatchMode=yes", "ProxyCommand=ssh -W %%h jump", "2222", "ops"} <= set(argv)
    assert argv[-1] == "sh -s -- 'ssh-ed25519 AAAA gpuprov-lab'"
    assert "authorized_keys" in script


@pytest.mark.parametrize(
    ("answers", "message", "hint"),
    [
        ([DENIED, DENIED], "neither gpuprov's key nor your own ssh gets into 10.0.0.1 as ops", "-p 2222 ops@10.0.0.1"),
        ([DENIED, OK, DENIED], "Permission denied", "no passphrase"),
        ([(255, "Host key verification failed.")], "Host key verification failed", "sites.<name>.host_keys"),
        ([OK, (1, "sudo: a password is required")], "ops cannot become root with sudo", "NOPASSWD"),
        ([OK, (255, "Connection refused")], "ssh to dgx01.lab (10.0.0.1 port 2222) as ops fails", "address, port"),
        ([(124, "no answer within 60 s")], "no answer within 60 s", "console"),
        ([OK, (127, "sh: python3: not found")], "python3 as root fails", "Python 3.8"),
        (
            [OK, (0, 'gpuprov:{"other": "dgx02.lab"}')],
            "dgx01.lab (10.0.0.1 port 2222) is another host of this cluster, dgx02.lab", "own address",
        ),
        ([OK, (0, 'gpuprov:{"foreign": "other"}')], "configured by another gpuprov cluster, other", "gpuprov down"),
        (
            [OK, (0, 'gpuprov:{"foreign": "lab", "identity": "3f9c1a7be204"}')],
            "configured by another gpuprov cluster, lab", "write 3f9c1a7be204 into ",
        ),
        (
            [OK, (0, 'gpuprov:{"vendors": "DGX OS 6.1"}')], "runs DGX OS 6.1",
            "verify --host ops@10.0.0.1 --machine dgx-h100",
        ),
        ([OK, (0, 'gpuprov:{"damaged": "/x/record.json: cut"}')], "/x/record.json: cut", "by hand"),
        ([OK, (0, 'gpuprov:{"failed": "/x: Read-only file system"}')], "/x: Read-only file system", "run the command"),
    ],
)  # fmt: skip
def test_what_keeps_gpuprov_out_is_said_with_what_to_do(
    transport: Way, monkeypatch: pytest.MonkeyPatch, answers: list[tuple[int, str]], message: str, hint: str
) -> None:
    Told(monkeypatch, *answers)
    failed = existing.admit(transport, [NODE], Events())
    assert message in failed["train-0"].message
    assert hint in failed["train-0"].hint
    assert failed["train-0"].where == "train-0"


def test_what_answers_for_a_host_that_is_elsewhere_is_left_again(
    transport: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dgx02 answers at the address of dgx01, and a machine without a record at that of dgx02."""
    both = Way(
        transport.paths, {"train-0": "ops", "train-1": "ops"}, {}, transport.key, transport.identity, transport.hosts
    )
    other = Node("train-1", "train", "rack", "dgx-h100", "dgx02.lab", "", "10.0.0.2", "10.0.0.2")
    calls: list[tuple[str, str]] = []

    def call(argv: Sequence[str], stdin: str = "", deadline_s: float = 0) -> tuple[int, str]:
        node = argv[-2]
        if argv[-1] == "true":
            return OK
        calls.append((node, "undo" if '\\"do\\": \\"undo\\"' in stdin else "begin"))
        if calls[-1][1] == "undo":
            return 0, 'gpuprov:{"done": [], "stays": []}'
        return 0, f"gpuprov:{json.dumps({'other': 'dgx02.lab'} if node == 'train-0' else {'ok': True, 'new': True})}"

    monkeypatch.setattr(existing, "_call", call)
    failed = existing.admit(both, [NODE, other], Events())
    assert failed["train-0"].message == "dgx01.lab (10.0.0.1 port 2222) is another host of this cluster, dgx02.lab"
    assert failed["train-1"].message == (
        "dgx02.lab (10.0.0.2 port 22) is not dgx02.lab, which answers at the address of train-0"
    )
    assert calls[-1] == ("train-1", "undo")


CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
It is also possible that a host key has just been changed.
The fingerprint for the ED25519 key sent by the remote host is
SHA256:JQO0uHp/te/Qz10F6lVndczAyh74H5LkGdwbMeMLAc0.
Add correct host key in /x/known_hosts to get rid of this message.
  remove with:
  ssh-keygen -f "/x/known_hosts" -R "box-0.lab"
Host key for box-0.lab has changed and you have requested strict checking.
Host key verification failed.
"""
"""OpenSSH 9.2 of a sandbox machine that was given another key."""


def test_a_host_key_that_changed_is_a_sentence(transport: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ssh's own advice is for a file that gpuprov writes anew."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\ncat >&2; exit 255\n")
    ssh.chmod(0o755)
    code, message = existing._call([str(ssh), "box-0", "true"], CHANGED)
    explanation = "it shows another one (SHA256:JQO0uHp/te/Qz10F6lVndczAyh74H5LkGdwbMeMLAc0) than is pinned"
    assert (code, message) == (255, f"Host key verification failed: {explanation}")
    Told(monkeypatch, (code, message))
    failed = existing.admit(transport, [NODE], Events())["train-0"]
    assert explanation in failed.message and "sites.<name>.host_keys" in failed.hint


def test_a_machine_that_is_refused_is_left_without_our_key(transport: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Told(monkeypatch, DENIED, OK, OK, (0, 'gpuprov:{"vendors": "DGX OS 6.1"}'), OK)
    assert "DGX OS" in existing.admit(transport, [NODE], Events())["train-0"].message
    argv, script = machine.requests[-1]
    assert (argv[-1], script) == ("sh -s -- 'ssh-ed25519 AAAA gpuprov-lab'", existing.TAKE_KEY)


def test_down_brings_its_key_where_up_has_not(transport: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Told(monkeypatch, DENIED, OK, UNDONE)
    assert existing.undo(transport, [NODE], lambda *_: None) == {}
    assert machine.requests[1][1] == existing.ADD_KEY


def test_down_brings_no_key_to_a_machine_that_it_has_left(transport: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Told(monkeypatch, DENIED)
    failed = existing.undo(transport, [NODE], lambda *_: None, finished={NODE.id})
    assert "Permission denied" in failed["train-0"].message and len(machine.requests) == 1


def test_down_leaves_no_key_on_another_clusters_machine(transport: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Told(monkeypatch, DENIED, OK, (0, 'gpuprov:{"foreign": "other"}'), OK)
    assert "another gpuprov cluster" in existing.undo(transport, [NODE], lambda *_: None)["train-0"].message
    assert machine.requests[-1][1] == existing.TAKE_KEY


@pytest.mark.parametrize(("answers", "call_count"), [([OK], 1), ([DENIED], 1)])
def test_a_run_that_has_lost_its_lease_changes_nothing(
    transport: Way, monkeypatch: pytest.MonkeyPatch, answers: list[tuple[int, str]], call_count: int
) -> None:
    """Another operator's `down` may have undone the machine by then."""
    machine, lost = Told(monkeypatch, *answers), LockedError("the lease is lost")
    process.stop_followed(lost)
    try:
        with pytest.raises(LockedError, match="the lease is lost"):
            existing.admit(transport, [NODE], Events())
        with pytest.raises(LockedError, match="the lease is lost"):
            existing.undo(transport, [NODE], lambda *_: None)
    finally:
        process.allow_followed(lost)
    assert len(machine.requests) == call_count


@pytest.mark.parametrize("previous_text", ["", "ssh-ed25519 BBBB me\n", "# mine\n\nssh-rsa C c\nssh-rsa D d", "a\n\n"])
def test_what_was_added_is_taken_and_nothing_else(tmp_path: Path, previous_text: str) -> None:
    file, line = tmp_path / ".ssh/authorized_keys", "ssh-ed25519 AAAA gpuprov-lab"
    file.parent.mkdir()
    file.write_text(previous_text)
    file.chmod(0o640)
    counts = []
    for script in (existing.ADD_KEY, existing.ADD_KEY, existing.TAKE_KEY):
        argv = ["sh", "-s", "--", line]
        subprocess.run(
            argv, input=script, text=True, check=True, env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        )
        counts.append(file.read_text().splitlines().count(line))
    assert counts == [1, 1, 0]
    assert file.read_text() == (
        previous_text if not previous_text or previous_text.endswith("\n") else previous_text + "\n"
    )
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in file.parent.iterdir()] == ["authorized_keys"]


def test_a_machine_that_down_does_not_reach_is_not_asked_for_python(
    transport: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    Told(monkeypatch, (255, "ssh: connect to host 10.0.0.1 port 2222: No route to host"))
    failed = existing.undo(transport, [NODE], lambda *_: None)["train-0"]
    assert (
        failed.message.startswith("ssh to dgx01.lab (10.0.0.1 port 2222) as ops fails") and "ython" not in failed.hint
    )


def test_a_jump_host_that_is_not_reached_says_nothing_of_the_machine(
    transport: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "jump host me@bastion is not reached: Host key verification failed: it shows another one"
    Told(monkeypatch, (255, message))
    failed = existing.undo(transport, [NODE], lambda *_: None)["train-0"]
    assert message in failed.message
    assert "make the jump host work" in failed.hint and "reinstalled" not in failed.hint


def test_this_very_machine_needs_no_key(transport: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh_config.save(transport.paths, [NODE], {}, {"train-0": "ops"}, local=["train-0"])
    machine = Told(monkeypatch, BEGUN, (0, 'gpuprov:{"done": [], "stays": ["x"]}'))
    assert existing.admit(transport, [NODE], Events()) == {}
    assert existing.undo(transport, [NODE], lambda *_: None) == {}
    request = json.loads(json.loads(machine.requests[1][1].rpartition("json.loads(")[2].rstrip(")\n")))
    assert "key" not in request


UNCLEAR = [
    "{}", "[]", "{", "3", "null", "", '{"ok": 1}', '{"done": [], "stays": 3}', '{"done": [3], "stays": []}',
    "[" * 100_000, '{"done": [], "stays": ' + "[" * 700 + "]" * 700 + "}", "9" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("answer", UNCLEAR)
def test_an_answer_that_is_none_fails_that_node_alone(
    transport: Way, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    Told(monkeypatch, OK, (0, f"gpuprov:{answer}"), (0, f"gpuprov:{answer}"))
    for failed in (existing.admit(transport, [NODE], Events()), existing.undo(transport, [NODE], lambda *_: None)):
        assert failed["train-0"].message.startswith("10.0.0.1 gives an answer that gpuprov did not ask for")
        assert failed["train-0"].where == "train-0"
        assert len(failed["train-0"].message) < 300


def test_what_a_machine_says_can_be_printed(transport: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    Told(monkeypatch, (0, 'gpuprov:{"done": ["/\\udc80"], "stays": ["\\u001b[2Jx"]}'))
    lines: list[str] = []
    assert existing.undo(transport, [NODE], lambda _, done, stays: lines.extend([*done, *stays])) == {}
    assert lines == ["/\\udc80", "\\x1b[2Jx"]


def test_a_key_that_stays_is_a_failure_after_what_was_done(transport: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    Told(monkeypatch, (0, 'gpuprov:{"done": ["a"], "stays": ["b"], "failed": "its key stays: disk full"}'))
    lines: list[str] = []
    failed = existing.undo(transport, [NODE], lambda _, done, stays: lines.extend([*done, *stays]))
    assert lines == ["a", "b"] and "its key stays: disk full" in failed["train-0"].message
