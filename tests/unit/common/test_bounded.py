"""What a node prints takes neither the memory nor the disk of the control machine, nor its time."""

from __future__ import annotations

import ast
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import provisioner
from provisioner.common import bounded
from provisioner.lifecycle import second_boot
from provisioner.machines import existing
from provisioner.transport import host_keys, process, ssh, ssh_failure
from provisioner.verify.collect import collect
from provisioner.verify.request import ProbeRequest

ENDLESS = "yes x"
ROOT = Path(provisioner.__file__).parent
LOCAL_PROGRAMS = {
    "common/bounded.py": "the bounded runner",
    "transport/process.py": "Terraform, Ansible, dnsmasq and hooks; `follow` has limits of its own",
    "lifecycle/remote_exec.py": "ssh, within a limit of its own (_Output)",
    "lifecycle/doctor.py": "ssh -V",
    "lifecycle/images/disk/first_boot.py": "tools of disks",
    "lifecycle/images/disk/tools.py": "tools of disks",
    "lifecycle/images/signing.py": "gpg",
    "lifecycle/images/vulnerabilities.py": "a scanner",
    "machines/installer/disk_image.py": "a compressor",
    "machines/installer/iso.py": "xorriso",
    "machines/installer/ramdisk.py": "a shell that packs files",
    "machines/installer/serve.py": "openssl",
    "lifecycle/images/generalise_node.py": "runs on the node",
    "lifecycle/maintain/on_node.py": "runs on the node",
    "machines/on_node.py": "runs on the node",
    "scheduler/on_head.py": "runs on the head node",
    "scheduler/on_node.py": "runs on the node",
    "scheduler/slurm_health.py": "runs on the node",
    "machines/netboot/network.py": "ip",
    "machines/providers/baremetal/known_hosts.py": "ssh-keygen over a file",
    "machines/providers/sandbox/images.py": "cp",
    "spec/private_key.py": "ssh-keygen over a file",
    "transport/ssh_keys.py": "ssh-keygen, which makes a key",
    "stack/openpgp.py": "gpg",
    "stack/unpack.py": "compressors",
    "configure/node_archive.py": "Python over gpuprov's own modules",
    "lifecycle/jobs/on_node.py": "runs on the node",
    "lifecycle/jobs/on_nodes.py": "tar on the node, of which the end is kept",
    "lifecycle/jobs/supervisor.py": "runs on the node",
    "verify/health.py": "runs on the node",
    "verify/probe/load.py": "runs on the node",
    "verify/probe/runner.py": "runs on the node",
    "machines/terraform/workspace.py": "terraform version",
}
"""Modules that take the whole output of a program, and of which. None is a way to a node: add no ssh here, use
provisioner/common/bounded.py."""


def takes_output(call: ast.Call) -> bool:
    """Whether a call of subprocess takes a child's output into memory."""
    if not ast.unparse(call.func).startswith(("subprocess.", "asyncio.create_subprocess")):
        return False
    values = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    return (
        values.get("capture_output") == "True"
        or any(values.get(stream, "").endswith("PIPE") for stream in ("stdout", "stderr"))
        or ast.unparse(call.func).endswith(("check_output", "getoutput"))
    )


def test_output_of_a_node_is_taken_by_the_bounded_runner_alone() -> None:
    modules = {
        path.relative_to(ROOT).as_posix(): [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
        ]
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0] != "sandbox"
    }
    reading_modules = {name for name, calls in modules.items() if any(map(takes_output, calls))}
    assert reading_modules - {"verify/collect.py", "configure/streams.py", "lifecycle/jobs/follow.py"} == set(
        LOCAL_PROGRAMS
    )
    sshs = [
        f"{name}:{call.lineno}"
        for name, calls in modules.items()
        for call in calls
        if takes_output(call) and call.args and ("ssh.argv(" in (argv := ast.unparse(call.args[0])) or "'ssh'" in argv)
    ]
    in_pieces = ("lifecycle/doctor.py:", "lifecycle/jobs/follow.py:")
    assert [position for position in sshs if not position.startswith(in_pieces)] == []


def test_a_command_its_status_and_what_it_printed() -> None:
    done = bounded.run(["sh", "-c", "cat; echo complaint >&2; exit 3"], stdin="x" * 300_000, deadline_s=20)
    assert (done.returncode, len(done.stdout), done.stderr) == (3, 300_000, "complaint\n")


def test_an_output_without_end_ends_the_command() -> None:
    with pytest.raises(bounded.UnboundedOutputError, match="sent more than 64 KiB"):
        bounded.run(["sh", "-c", ENDLESS], deadline_s=60, limit=64 << 10)


def test_of_errors_the_end_is_kept() -> None:
    done = bounded.run(["sh", "-c", "head -c 3000000 /dev/zero >&2; echo last >&2"], deadline_s=60)
    assert len(done.stderr) == bounded.ERRORS
    assert done.stderr.endswith("last\n")


@pytest.mark.parametrize("script", ["sleep 60", "exec >&-; sleep 60", "yes >&2", "exec >&-; yes >&2"])
def test_there_is_a_deadline(script: str) -> None:
    started = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        bounded.run(["sh", "-c", script], deadline_s=0.5, new_session=True)
    assert time.monotonic() - started < 20


def test_a_shared_connection_that_keeps_standard_error_open_holds_nothing_up() -> None:
    started = time.monotonic()
    done = bounded.run(["sh", "-c", "sleep 5 >/dev/null </dev/null & echo complaint >&2; echo out"], deadline_s=60)
    assert (done.stdout, done.stderr) == ("out\n", "complaint\n")
    assert time.monotonic() - started < 4


@pytest.fixture
def endless_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`ssh` and `ssh-keyscan` of a node that prints without end."""
    for name in ("ssh", "ssh-keyscan"):
        (tmp_path / name).write_text(f"#!/bin/sh\nexec {ENDLESS}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_an_answer_without_end_is_none(endless_ssh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these kept all of it until its deadline, 15 s to 60 s later."""
    monkeypatch.setattr(ssh, "argv", lambda *_: ["ssh", "node"])
    started = time.monotonic()
    cluster = SimpleNamespace(paths=None)
    assert second_boot.ask(cluster, SimpleNamespace(name="train-0"), "uptime") == ""  # type: ignore[arg-type]
    assert existing._call(["ssh", "node", "true"]) == (1, "sent more than 1024 KiB")
    assert ssh_failure.explain(["ssh", "node"], "") == "sent more than 1024 KiB"
    assert host_keys.scan("192.0.2.1") == ""
    assert host_keys.scan_through("true", "192.0.2.1") == ""
    assert time.monotonic() - started < 14


def test_errors_of_a_probe_lie_in_no_file() -> None:
    """They went to a temporary file without a limit: a node filled the control machine's disk."""
    flood = "head -c 40000000 /dev/zero >&2; readlink /proc/self/fd/2 >&2; #"
    bundle = collect({"node": ["sh", "-c", flood]}, ProbeRequest({}), deadline_s=30)["node"]
    assert "pipe:[" in bundle.error[-40:]


def test_a_probes_deadline_holds_while_errors_come_without_end() -> None:
    started = time.monotonic()
    bundle = collect({"node": ["sh", "-c", "yes complaint >&2; #"]}, ProbeRequest({}), deadline_s=0.5)["node"]
    assert bundle.error.startswith("no answer within")
    assert time.monotonic() - started < 20


def test_a_line_and_errors_of_a_followed_program_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LINE", 1000)
    monkeypatch.setattr(process, "COMPLAINTS", 1000)
    lines: list[str] = []
    script = "head -c 100000 /dev/zero | tr '\\0' x; echo; echo end; seq 1 100000 >&2"
    ended = process.follow(["sh", "-c", script], lines.append, cwd=tmp_path, grace_s=5, stopping=lambda: None)
    assert lines == ["x" * 1000, "end\n"]
    assert ended.complaints[-1] == "100000\n"
    assert sum(map(len, ended.complaints)) <= 1000
