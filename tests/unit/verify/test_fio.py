"""fio on scratch: the probe's part with fio as a script, the parser on what it may meet, each check red and green."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.catalog import load
from provisioner.spec.groups import Group, Storage
from provisioner.verify.baseline import Baseline
from provisioner.verify.expectations import Expected
from provisioner.verify.parsers import Unreadable
from provisioner.verify.parsers.fio import parse
from provisioner.verify.probe import fio as probe_fio
from provisioner.verify.probe import load as probe_load
from provisioner.verify.probe import runner
from provisioner.verify.pytest_runner import Case, Judged
from provisioner.verify.request import load_request
from tests.support.healthy_bundle import bundle, expected, healthy, nth
from tests.support.healthy_fio import FIO_CHECKS, REACHED, SIZE, fio_json, output, part
from tests.support.judging import judge

RECORD = {"scratch_write": 8.1, "scratch_read": 16.9, "scratch_iops": 1200.0}
P4D, DGX, BARE = "p4d.24xlarge", "dgx-h100", "p3.8xlarge"
SMART = json.dumps({"media_errors": 9})
HUNG = {"rc": None, "timed_out": True, "seconds": 50.0, "error": "", "output": ""}
REFUSED = {"rc": 1, "timed_out": False, "seconds": 0.0, "error": "[Errno 30] Read-only file system: '/scratch'"}


def phases(**parts: dict[str, Any] | None) -> dict[str, Any]:
    """All parts, some of them otherwise, or (None) not there."""
    return {n: row for n in REACHED if (row := parts.get(n, part(n))) is not None}


@dataclass(frozen=True)
class Fault:
    """fio.json is otherwise healthy and says this; then `fails` alone fails, and of its own kind `unknown` are."""

    fails: str
    says: str
    values: dict[str, Any]
    unknown: set[str] = field(default_factory=set)


SILENT = {"storage.bandwidth", "storage.latency"}
FAULTS = {
    "i/o error": Fault("storage.io", "write: error 5", {
        "phases": phases(write=part("write", 0.0, 1, error=5), read=None, random=None)}, SILENT),
    "read error": Fault("storage.io", "read: error 5", {
        "phases": phases(read=part("read", 0.0, 1, error=5), random=None)}, SILENT),
    "read-only": Fault("storage.io", "Read-only file system", {
        "phases": phases(write=REFUSED, read=None, random=None)}, SILENT),
    "no end": Fault("storage.io", "random: no end after 50 s", {"phases": phases(random=HUNG)}, SILENT),
    "slow": Fault("storage.bandwidth", "scratch reads: 5 GB/s", {"phases": phases(read=part("read", 5e9))}),
    "very slow": Fault("storage.bandwidth", "of 8192 MiB only 1024 were written", {
        "phases": phases(write=part("write", 4e7, io_bytes=1 << 30), read=None, random=None)},
        {"storage.latency"}),
    "stutters": Fault("storage.latency", "480 ms", {"phases": phases(random=part("random", tail_ms=480))}),
    "flash": Fault("storage.media_errors", "nvme1: 7 more", {
        "smart": {"before": {"nvme1": json.dumps({"media_errors": 2})}, "after": {"nvme1": SMART}}}),
    "flash, in words of another nvme-cli": Fault("storage.media_errors", "nvme1: 7 more", {
        "smart": {"before": {"nvme1": '{"media_errors": "2"}'}, "after": {"nvme1": '{"media_errors": 9.0}'}}}),
}  # fmt: skip
ABSENT = {
    "missing": "fio is not installed",
    "full": "only 90 MiB are free on /scratch",
    "unmounted": "nothing is mounted on /scratch",
}


def expectation_of(machine: str, level: str = "stress") -> Expected:
    scratch = "/scratch" if load().machine(machine).local_nvme.count else None
    return expected(machine, level, Group(machine=machine, storage=Storage(scratch=scratch)))  # type: ignore[arg-type]


def case(machine: str, text: str | None, level: str = "stress", baseline: Baseline | None = None) -> Case:
    texts = {name: value for name, value in healthy(machine).items() if name != "fio.json"}
    return Case(
        bundle(texts | ({"fio.json": text} if text is not None else {})),
        expectation_of(machine, level),
        baseline=baseline,
    )  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def judged() -> dict[str, Judged]:
    cases = {name: case(P4D, fio_json(**fault.values)) for name, fault in FAULTS.items()}
    cases |= {f"healthy {name}": case(name, fio_json()) for name in (P4D, DGX)}
    cases |= {state: case(P4D, json.dumps({"state": "absent", "why": reason})) for state, reason in ABSENT.items()}
    cases["busy"] = case(P4D, json.dumps({"state": "busy", "busy": [{"pid": 7, "name": "train"}]}))
    cases["no disks"] = case(BARE, None)
    cases["quick"] = case(P4D, None, "quick")
    cases["not written"] = case(P4D, None)
    for i, scale in enumerate((1.0, 1.01, 0.99, 1.005, 0.7)):
        cases[f"peer {i}"] = Case(
            bundle(nth(DGX, i) | {"fio.json": fio_json(scale)}), expectation_of(DGX), group="peers"
        )
    for name, value in RECORD.items():
        cases[f"slower {name}"] = case(P4D, fio_json(), baseline=Baseline(RECORD | {name: value * 1.25}))
    cases["as recorded"] = case(P4D, fio_json(), baseline=Baseline(RECORD))
    return judge(cases)


def ids(verdict: Judged, status: str) -> set[str]:
    return {check.id for check in verdict.checks if check.status == status}


def message(verdict: Judged, check: str) -> str:
    return next(result.message for result in verdict.checks if result.id == check)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_its_check_alone(judged: dict[str, Judged], name: str) -> None:
    fault, verdict = FAULTS[name], judged[name]
    assert ids(verdict, "fail") == {fault.fails}
    assert fault.says in message(verdict, fault.fails)
    assert ids(verdict, "unknown") & FIO_CHECKS == fault.unknown


def test_every_check_has_a_red_input_and_a_green_one(judged: dict[str, Judged]) -> None:
    assert {fault.fails for fault in FAULTS.values()} == FIO_CHECKS
    for machine in (P4D, DGX):
        assert ids(judged[f"healthy {machine}"], "pass") >= FIO_CHECKS


@pytest.mark.parametrize("name", ABSENT)
def test_what_could_not_be_tried_is_unknown_and_condemns_nobody(judged: dict[str, Judged], name: str) -> None:
    assert ids(judged[name], "unknown") >= {"storage.bandwidth", "storage.latency"}
    assert ids(judged[name], "pass") & FIO_CHECKS == set()
    assert not any(check.condemns for check in judged[name].checks)
    assert ABSENT[name] in message(judged[name], "storage.bandwidth")
    assert ("gpuprov up" in message(judged[name], "storage.bandwidth")) == (name == "missing")


@pytest.mark.parametrize("name", ["busy", "no disks", "quick"])
def test_a_job_is_not_disturbed_and_what_does_not_apply_is_skipped(judged: dict[str, Judged], name: str) -> None:
    assert ids(judged[name], "skip") >= FIO_CHECKS | {"fleet.slow_scratch", "baseline.scratch_read"}


def test_what_was_asked_for_and_is_not_there_is_unknown(judged: dict[str, Judged]) -> None:
    assert ids(judged["not written"], "unknown") >= FIO_CHECKS


@pytest.mark.parametrize("name", ["scratch_write", "scratch_read", "scratch_iops"])
def test_what_is_slower_than_its_record_is_told(judged: dict[str, Judged], name: str) -> None:
    assert ids(judged[f"slower {name}"], "fail") == {f"baseline.{name}"}
    assert f"baseline.{name}" in ids(judged["as recorded"], "pass")


def test_the_slow_one_of_a_group_is_named(judged: dict[str, Judged]) -> None:
    failing = {name: ids(judged[name], "fail") for name in judged if name.startswith("peer")}
    assert failing == {f"peer {i}": {"fleet.slow_scratch"} if i == 4 else set() for i in range(5)}
    assert "small reads: 840 k/s, 5 nodes have 1200" in message(judged["peer 4"], "fleet.slow_scratch")


def test_a_captured_run_is_read() -> None:
    parsed = parse(fio_json())
    assert [(p.name, p.gbps, p.error) for p in parsed.phases] == [
        ("write", 8.1, ""), ("read", 16.9, ""), ("random", pytest.approx(4.9152), "")]  # fmt: skip
    random = parsed.phase("random")
    assert random is not None and random.iops == 1.2e6 and random.tail_ms == pytest.approx(16.71168)
    assert (parsed.version, parsed.size, parsed.place) == ("fio-3.33", SIZE, "/scratch")


@pytest.mark.parametrize("text", [
    "", "[]", "{}", '{"state": "ran"}', '{"state": "ran", "phases": {}}', '{"state": "fine"}',
    json.dumps({"state": "ran", "phases": {"write": {"output": "{"}}}),
    json.dumps({"state": "ran", "phases": {"write": {"output": "{}"}}}),
    json.dumps({"state": "ran", "phases": {"write": {"output": '{"jobs": [{}, {}]}'}}}),
    json.dumps({"state": "ran", "phases": {"write": {"output": '{"jobs": [{"error": 0, "write": {}}]}'}}}),
])  # fmt: skip
def test_what_was_never_seen_is_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        parse(text)


def test_notes_before_the_document_are_passed_over_and_odd_numbers_are_none() -> None:
    row = part("write") | {
        "output": "note: both iodepth >= 1 and synchronous I/O engine are selected\n" + output("write")
    }
    assert parse(fio_json(phases=phases(write=row))).phases[0].gbps == 8.1
    odd = parse(fio_json(phases=phases(random=part("random", iops=float("nan"), clat_ns=None)))).phase("random")
    assert odd is not None and odd.iops is None and odd.tail_ms is None


values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["state", "phases", "write", "read", "random", "output", "jobs", "error", "bw_bytes", "smart"]), inner),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(values, st.sampled_from(["phases", "smart", "busy", "bytes", "why", "state"]))
def test_any_document_is_read_or_unreadable(value: Any, key: str) -> None:
    with contextlib.suppress(Unreadable):
        parse(fio_json(**{key: value}))
    with contextlib.suppress(Unreadable):
        parse(fio_json(phases=phases(write=part("write") | {"output": json.dumps(value)})))


def test_a_floor_is_below_what_the_disks_do() -> None:
    for machine in load().machines():
        limits = load().scratch_limits(machine)
        # A lane of PCIe 4 carries 1.97 GB/s, and a disk has four.
        assert all(0 < limit < machine.local_nvme.count * 4 * 1.97 for limit in limits.values()), machine.name


SCRIPT = """#!/usr/bin/python3
import json, os, sys
opts = dict(a[2:].partition("=")[::2] for a in sys.argv[1:])
there = os.stat(opts["filename"])
with open({log!r}, "a") as log:
    log.write(json.dumps([opts, there.st_size, there.st_nlink, os.listdir({place!r})]) + "\\n")
{then}
done = int(opts.get("io_size", opts["size"]))
way = {{"io_bytes": done, "bw_bytes": 5, "iops": 7.0}}
print(json.dumps({{"fio version": "fio-3", "jobs": [{{"error": 0, "read": way, "write": way}}]}}))
"""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for programs, one that is scratch, and no job."""
    (tmp_path / "scratch").mkdir()
    path = f"{tmp_path}:/usr/bin:/bin"
    for module in (runner, probe_load, probe_fio):
        monkeypatch.setattr(module, "PATH", path)
    monkeypatch.setattr(probe_fio, "lines_of", lambda _: [f"x {tmp_path}/scratch xfs rw"])
    program(tmp_path, "nvidia-smi", "#!/bin/sh\nexit 0\n")
    return tmp_path


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def ask(node: Path, then: str = "", *, fio: bool = True, vendor: str = "nvidia", **scratch: Any) -> dict[str, Any]:
    """fio.json after fio as a script has run."""
    if fio:
        program(node, "fio", SCRIPT.format(log=str(node / "log"), place=str(node / "scratch"), then=then))
    request = load_request(expectation_of(P4D))
    assert request is not None
    request_document = request.to_json()
    assert request_document["files"]["fio.json"] == 150
    request_document["load"]["vendor"] = vendor
    request_document["load"]["scratch"] |= {"place": str(node / "scratch"), "bytes": 64 << 20} | scratch
    answer = runner.probe({**request_document, "files": {"fio.json": 20.0}, "deadline": 25.0})
    document: dict[str, Any] = json.loads(answer["files"]["fio.json"]["text"])
    assert list((node / "scratch").iterdir()) == [], "nothing is left"
    return document


def test_the_file_has_no_name_and_is_written_before_it_is_read(node: Path) -> None:
    document = ask(node)
    assert (document["state"], list(document["phases"]), document["bytes"]) == (
        "ran",
        ["write", "read", "random"],
        64 << 20,
    )
    runs = [json.loads(line) for line in (node / "log").read_text().splitlines()]
    assert all((size, links, names) == (64 << 20, 0, []) for _, size, links, names in runs)
    assert [(o["rw"], o["bs"], o["direct"], o["runtime"]) for o, *_ in runs] == [
        ("write", "1M", "1", "30"), ("read", "1M", "1", "10"), ("randread", "4k", "1", "10")]  # fmt: skip
    assert runs[0][0]["io_size"] == str(128 << 20)
    assert parse(json.dumps(document)).phases[0].gbps == 5e-9


def test_what_was_not_written_whole_is_not_read(node: Path) -> None:
    document = ask(node, 'opts["size"] = opts["io_size"] = 1000')
    assert list(document["phases"]) == ["write"]


def test_a_failure_ends_it_and_a_hung_one_is_killed(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(node, 'sys.exit("no space")')["phases"]["write"]["rc"] == 1
    monkeypatch.setattr(probe_fio, "SLACK_S", 0.3)
    document = ask(node, "import time; time.sleep(60)", write_s=0.1)
    assert document["phases"] == {"write": document["phases"]["write"]}
    assert document["phases"]["write"]["timed_out"] is True


def test_nothing_runs_beside_a_job_or_where_it_cannot(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(node, fio=False)["why"] == "fio is not installed"
    program(node, "nvidia-smi", "#!/bin/sh\nexit 9\n")
    assert ask(node)["why"] == "cannot tell whether a job is using the GPUs"
    program(node, "nvidia-smi", "#!/bin/sh\necho '7, train'\n")
    (holder,) = ask(node)["busy"]
    assert (holder["pid"], holder["name"]) == (7, "train")
    program(node, "nvidia-smi", "#!/bin/sh\nexit 0\n")
    full = os.statvfs_result((4096, 4096, 100, 20000, 20000, 1, 1, 1, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    assert ask(node)["why"].startswith("only 78 MiB are free on ")
    monkeypatch.setattr(probe_fio, "lines_of", lambda _: ["x / ext4 rw"])
    assert ask(node)["why"].startswith("nothing is mounted on ")
    assert not (node / "log").exists()


def test_a_node_without_gpus_has_no_job_on_them(node: Path) -> None:
    (node / "nvidia-smi").unlink()
    assert ask(node)["state"] == "absent"
    assert ask(node, vendor="none")["state"] == "ran"


def test_a_filesystem_that_refuses_is_told(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(probe_fio.tempfile, "TemporaryFile", refuse)
    assert parse(json.dumps(ask(node))).phases[0].error == "[Errno 30] Read-only file system"
    assert stat.S_ISDIR((node / "scratch").stat().st_mode)
