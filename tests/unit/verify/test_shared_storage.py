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

from provisioner.verify.expectations import Expected
from provisioner.verify.facts import read
from provisioner.verify.health import judge
from provisioner.verify.parsers import Unreadable, shared
from provisioner.verify.probe import runner
from provisioner.verify.probe import shared as probe_shared
from provisioner.verify.request import ProbeRequest, request_for
from provisioner.verify.results import CheckResult
from tests.support.healthy_bundle import bundle, expected, healthy

P4D = "p4d.24xlarge"
SOURCE = "fs-0123456789abcdef0.efs.us-east-1.amazonaws.com:/"
WANTED = {"path": "/efs", "type": "nfs4", "source": SOURCE, "unit": "efs.mount", "shows_type": "nfs4",
          "shows_source": SOURCE, "access": "rw"}  # fmt: skip
LINE = f"{SOURCE} /efs nfs4 rw,relatime,vers=4.1,hard"
FINE = {"rc": 0, "timed_out": False, "seconds": 0.01, "error": ""}


def expectation_of(**changed: str) -> Expected:
    return replace(expected(P4D, "quick"), shared=({**WANTED, **changed},))


def judged(places: Any, want: Expected | None = None) -> CheckResult:
    texts = healthy(P4D) | ({} if places is None else {"shared.json": json.dumps(places)})
    (storage_check,) = (
        check for check in judge(read(bundle(texts)), want or expectation_of()).checks if check.id == "storage.shared"
    )
    return storage_check


def at(line: str | None, **answers: Any) -> dict[str, Any]:
    return {"/efs": {"mounted": line, "answers": {**FINE, **answers} if line else None}}


@pytest.mark.parametrize(
    ("places", "status", "message"),
    [
        (at(LINE), "pass", ""),
        (at(None), "fail", "/efs: nothing is mounted"),
        (at(LINE.replace("fs-0", "fs-9")), "fail", "is mounted, not fs-0123456789abcdef0.efs"),
        (at("tmpfs /efs tmpfs rw"), "fail", "tmpfs (tmpfs) is mounted"),
        (at(LINE.replace(" rw,", " ro,")), "fail", "mounted read-only"),
        (at(LINE, rc=None, timed_out=True, seconds=10.2), "fail", "/efs: no answer within 10 s"),
        (at(LINE, rc=1, error="stat: cannot read file system information: Stale file handle"), "fail",
         "Stale file handle"),
        (at(LINE, rc=2), "fail", "read error: status 2"),
        (at(LINE, rc=None), "fail", "read error: status None"),
        ({}, "unknown", "/efs was not asked"),
        (None, "unknown", "shared.json"),
        ({"/efs": {}}, "unknown", "nothing is said of /efs"),
        ({"/efs": {"mounted": "what"}}, "unknown", "no line of the kernel's mounts"),
    ],
)  # fmt: skip
def test_what_is_at_the_path(places: Any, status: str, message: str) -> None:
    check = judged(places)
    assert (check.status, check.severity) == (status, "fatal")
    assert message in check.message


FSX = "10.77.3.9@tcp:/4gb3nbem"
LUSTRE = {
    "path": "/efs", "type": "lustre", "source": "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com@tcp:/4gb3nbem",
    "shows_type": "lustre", "shows_source": "*@tcp:/4gb3nbem", "access": "rw",
}  # fmt: skip
ON_FSX = f"{FSX} /efs lustre rw,noatime,checksum,flock,nouser_xattr,lruresize,lazystatfs"


@pytest.mark.parametrize(
    ("places", "status", "message"),
    [
        (at(ON_FSX), "pass", ""),
        (at(None), "fail", "/efs: nothing is mounted"),
        (at(ON_FSX.replace("4gb3nbem", "7jk2abcd")), "fail", "10.77.3.9@tcp:/7jk2abcd (lustre) is mounted, not fs-0"),
        (at(ON_FSX.replace(" lustre ", " nfs4 ")), "fail", "(nfs4) is mounted, not"),
        (at(ON_FSX.replace(" rw,", " ro,")), "fail", "mounted read-only"),
        (at(ON_FSX, rc=None, timed_out=True, seconds=10.0), "fail", "/efs: no answer within 10 s"),
        (at(ON_FSX, rc=1, error="find: '/efs': Input/output error"), "fail", "Input/output error"),
    ],
)  # fmt: skip
def test_lustre_shows_an_address_in_the_place_of_its_name(places: Any, status: str, message: str) -> None:
    check = judged(places, expectation_of(**LUSTRE))
    assert check.status == status
    assert message in check.message


BUCKET = {"path": "/efs", "type": "mount-s3", "source": "s3://my-data/sets/", "shows_type": "fuse",
          "shows_source": "mountpoint-s3", "access": "ro"}  # fmt: skip
READING = "mountpoint-s3 /efs fuse ro,nosuid,nodev,noatime,user_id=0,group_id=0,default_permissions,allow_other"
WRITING = READING.replace(" ro,", " rw,")


def bucket(line: str | None, serves: str | None = "s3://my-data/sets/", **answers: Any) -> dict[str, Any]:
    answer = at(line, **answers)
    answer["/efs"]["serves"] = serves
    return answer


@pytest.mark.parametrize(
    ("places", "access", "status", "message"),
    [
        (bucket(READING), "ro", "pass", ""),
        (bucket(WRITING), "rw", "pass", ""),
        (bucket(None, None), "ro", "fail", "/efs: nothing is mounted"),
        (bucket(READING, "s3://my-data/other/"), "ro", "fail", "s3://my-data/other/ is mounted, not s3://my-data/sets/"),
        (bucket(READING, "my-data"), "ro", "fail", "my-data is mounted, not s3://my-data/sets/"),
        (bucket(READING, None), "ro", "fail", "an unknown bucket is mounted, not s3://my-data/sets/"),
        (bucket(READING.replace("mountpoint-s3", "s3fs")), "ro", "fail", "s3fs (fuse) is mounted, not s3://my-data"),
        (bucket(READING.replace(" fuse ", " fuse.s3fs ")), "ro", "fail", "(fuse.s3fs) is mounted"),
        (bucket(READING), "rw", "fail", "mounted read-only"),
        (bucket(WRITING), "ro", "fail", "mounted for writing, which cluster.yaml does not allow"),
        (bucket(READING, rc=None, timed_out=True, seconds=10.1), "ro", "fail", "no answer within 10 s"),
        (bucket(READING, None, rc=1, error="stat: cannot read file system information for '/efs': Transport endpoint "
                "is not connected"), "ro", "fail", "Transport endpoint is not connected"),
        (bucket(READING, rc=1, error="find: '/efs': Input/output error"), "ro", "fail", "Input/output error"),
    ],
)  # fmt: skip
def test_a_bucket_is_told_by_the_process_that_serves_it(places: Any, access: str, status: str, message: str) -> None:
    check = judged(places, expectation_of(**{**BUCKET, "access": access}))
    assert check.status == status
    assert message in check.message


def test_the_probe_finds_the_process_that_serves_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = {
        "1": "/sbin/init",
        "100": "/usr/bin/vim\0s3://mine/\0/data",
        "200": "/sbin/mount.mount-s3\0s3://my-data/sets/\0/data\0-o\0ro,nosuid,nodev,allow-other,_netdev",
        "300": "mount-s3\0my-results\0/results",
        "self": "/sbin/mount.mount-s3\0s3://nobody/\0/data",
    }
    for process, line in running.items():
        (tmp_path / process).mkdir()
        (tmp_path / process / "cmdline").write_text(f"{line}\0")
    (tmp_path / "400").mkdir()  # it has ended meanwhile
    monkeypatch.setattr(probe_shared, "PROC", str(tmp_path))
    sources = [probe_shared.serves(path) for path in ("/data", "/results", "/elsewhere")]
    assert sources == ["s3://my-data/sets/", "my-results", None]


def test_what_terraform_has_not_made_is_not_there_whatever_is_mounted() -> None:
    check = judged(at(LINE), expectation_of(source=""))
    assert (check.status, "Terraform has not made it yet" in check.message) == ("fail", True)


def test_where_none_is_expected_it_is_skipped_with_the_reason_and_nothing_is_asked() -> None:
    plain = expected(P4D, "quick")
    assert judged(None, plain).status == "skip"
    assert "it is a sandbox, which makes none" in judged(None, plain).message
    assert "shared.json" not in request_for(plain).files
    request = request_for(expectation_of())
    assert (request.to_json()["shared"], "shared.json" in request.files) == (["/efs"], True)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_nonsense_is_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        shared.parse(text)


def test_the_probe_reads_the_kernels_table_and_asks_what_is_mounted(tmp_path: Path) -> None:
    document = json.loads(probe_shared.shared(20, {"shared": ["/proc", str(tmp_path / "nothing")]})["text"])
    assert document[str(tmp_path / "nothing")] == {"mounted": None, "answers": None}
    assert document["/proc"]["mounted"].split(" ")[2] == "proc"
    assert (document["/proc"]["answers"]["rc"], document["/proc"]["answers"]["timed_out"]) == (0, False)


@pytest.mark.parametrize("tool", ["stat", "find"])
def test_a_server_that_hangs_is_given_up(tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stat", "find"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{'exec sleep 600' if name == tool else ':'}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(runner, "PATH", f"{tmp_path}:{os.defpath}")
    monkeypatch.setattr(probe_shared, "ANSWER_S", 0.5)
    began = time.monotonic()
    answers = json.loads(probe_shared.shared(20, {"shared": ["/proc"]})["text"])["/proc"]["answers"]
    assert (answers["timed_out"], answers["rc"]) == (True, None)
    assert time.monotonic() - began < 60  # not the ten minutes of the server


def test_a_server_that_hangs_holds_no_probe_up(tmp_path: Path) -> None:
    """The probe as it is sent, with a stat that neither ends nor lets itself be stopped politely."""
    from provisioner.verify.collect import probe_source

    (tmp_path / "stat").write_text("#!/bin/sh\ntrap '' TERM INT HUP\nexec sleep 600\n")
    (tmp_path / "stat").chmod(0o755)
    request_text = json.dumps(ProbeRequest({"shared.json": 15, "kernel.txt": 5}, shared=("/proc",)).to_json())
    program = probe_source().replace("ANSWER_S = 10.0", "ANSWER_S = 0.5", 1)
    program += f"\nPATH = {str(tmp_path)!r} + ':' + PATH\nmain(json.loads({request_text!r}))\n"
    done = subprocess.run(["python3", "-I", "-"], input=program, capture_output=True, text=True, timeout=60, check=True)
    from provisioner.verify.collect import decode

    answer = decode(done.stdout.encode())
    assert answer is not None
    assert json.loads(answer.files["shared.json"].text)["/proc"]["answers"]["timed_out"] is True
    assert answer.files["kernel.txt"].rc == 0
