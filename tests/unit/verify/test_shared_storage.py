"""storage.shared: file systems of the network, mounted and answering, or not."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.verify import probe, probe_shared
from provisioner.verify.collect import request_for
from provisioner.verify.expectations import Expected
from provisioner.verify.health import judge
from provisioner.verify.parsers import Unreadable, shared
from provisioner.verify.results import CheckResult
from tests.support.healthy_bundle import bundle, expected, healthy

P4D = "p4d.24xlarge"
SOURCE = "fs-0123456789abcdef0.efs.us-east-1.amazonaws.com:/"
WANTED = {"path": "/efs", "type": "nfs4", "source": SOURCE, "unit": "efs.mount"}
LINE = f"{SOURCE} /efs nfs4 rw,relatime,vers=4.1,hard"
FINE = {"rc": 0, "timed_out": False, "seconds": 0.01, "error": ""}


def wanted(**changed: str) -> Expected:
    return replace(expected(P4D, "quick"), shared=({**WANTED, **changed},))


def judged(places: Any, want: Expected | None = None) -> CheckResult:
    texts = healthy(P4D) | ({} if places is None else {"shared.json": json.dumps(places)})
    (found,) = (check for check in judge(bundle(texts), want or wanted()).checks if check.id == "storage.shared")
    return found


def at(line: str | None, **answers: Any) -> dict[str, Any]:
    return {"/efs": {"mounted": line, "answers": {**FINE, **answers} if line else None}}


@pytest.mark.parametrize(
    ("places", "status", "says"),
    [
        (at(LINE), "pass", ""),
        (at(None), "fail", "/efs: nothing is mounted"),
        (at(LINE.replace("fs-0", "fs-9")), "fail", "is mounted, not fs-0123456789abcdef0.efs"),
        (at("tmpfs /efs tmpfs rw"), "fail", "tmpfs (tmpfs) is mounted"),
        (at(LINE.replace(" rw,", " ro,")), "fail", "mounted read-only"),
        (at(LINE, rc=None, timed_out=True, seconds=10.2), "fail", "/efs: no answer within 10 s"),
        (at(LINE, rc=1, error="stat: cannot read file system information: Stale file handle"), "fail",
         "Stale file handle"),
        (at(LINE, rc=2), "fail", "it can't be read: status 2"),
        (at(LINE, rc=None), "fail", "it can't be read"),
        ({}, "unknown", "/efs was not asked"),
        (None, "unknown", "shared.json"),
        ({"/efs": {}}, "unknown", "nothing is said of /efs"),
        ({"/efs": {"mounted": "what"}}, "unknown", "no line of the kernel's mounts"),
    ],
)  # fmt: skip
def test_what_is_at_the_path(places: Any, status: str, says: str) -> None:
    found = judged(places)
    assert (found.status, found.severity) == (status, "fatal")
    assert says in found.message


def test_what_terraform_has_not_made_is_not_there_whatever_is_mounted() -> None:
    found = judged(at(LINE), wanted(source=""))
    assert (found.status, "Terraform has not made it yet" in found.message) == ("fail", True)


def test_where_none_is_expected_it_is_skipped_with_the_reason_and_nothing_is_asked() -> None:
    plain = expected(P4D, "quick")
    assert judged(None, plain).status == "skip"
    assert "it is a rehearsal, which makes none" in judged(None, plain).message
    assert "shared.json" not in request_for(plain).files
    asked = request_for(wanted())
    assert (asked.to_json()["shared"], "shared.json" in asked.files) == (["/efs"], True)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_nonsense_is_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        shared.parse(text)


def test_the_probe_reads_the_kernels_table_and_asks_what_is_mounted(tmp_path: Path) -> None:
    said = json.loads(probe_shared.shared(20, {"shared": ["/proc", str(tmp_path / "nothing")]})["text"])
    assert said[str(tmp_path / "nothing")] == {"mounted": None, "answers": None}
    assert said["/proc"]["mounted"].split(" ")[2] == "proc"
    assert (said["/proc"]["answers"]["rc"], said["/proc"]["answers"]["timed_out"]) == (0, False)


@pytest.mark.parametrize("tool", ["stat", "find"])
def test_a_server_that_hangs_is_given_up(tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stat", "find"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{'exec sleep 600' if name == tool else ':'}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(probe, "PATH", f"{tmp_path}:{os.defpath}")
    monkeypatch.setattr(probe_shared, "ANSWER_S", 0.5)
    began = time.monotonic()
    said = json.loads(probe_shared.shared(20, {"shared": ["/proc"]})["text"])["/proc"]["answers"]
    assert (said["timed_out"], said["rc"]) == (True, None)
    assert time.monotonic() - began < 60  # not the ten minutes of the server


def test_a_server_that_hangs_holds_no_probe_up(tmp_path: Path) -> None:
    """The probe as it is sent, with a stat that neither ends nor lets itself be stopped politely."""
    from provisioner.verify.collect import probe_source

    (tmp_path / "stat").write_text("#!/bin/sh\ntrap '' TERM INT HUP\nexec sleep 600\n")
    (tmp_path / "stat").chmod(0o755)
    asked = json.dumps({"deadline": 20, "files": {"shared.json": 15, "kernel.txt": 5}, "shared": ["/proc"]})
    program = probe_source().replace("ANSWER_S = 10.0", "ANSWER_S = 0.5", 1)
    program += f"\nPATH = {str(tmp_path)!r} + ':' + PATH\nmain(json.loads({asked!r}))\n"
    done = subprocess.run(["python3", "-I", "-"], input=program, capture_output=True, text=True, timeout=60, check=True)
    from provisioner.verify.collect import decode

    found = decode(done.stdout.encode())
    assert found is not None
    assert json.loads(found.files["shared.json"].text)["/proc"]["answers"]["timed_out"] is True
    assert found.files["kernel.txt"].rc == 0
