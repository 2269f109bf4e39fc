"""The checks on a node itself, by a timer: the probe, parsers and checks of `gpuprov verify --level quick`, as metrics.

    python3 health.pyz EXPECTED.json gpuprov.prom
    python3 health.pyz --ended gpuprov.prom        (ExecStopPost=: what a look that was killed can't write any more)

Standard library only, Python 3.10 or later; ansible/roles/health puts it on nodes as a zip of these modules
(archive.py). What is expected comes in a file from the catalogue and the lock, never from the node. The file
of metrics is written whole, for node_exporter's textfile collector. Checks that compare a node with others, and those
of other levels, are the fleet's and not asked here.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from provisioner.transport import root_python
from provisioner.verify import check_runner, growth
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.check import Check
from provisioner.verify.collect import decode, probe_source
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts, read
from provisioner.verify.merged_checks import merge
from provisioner.verify.parsers import last_look
from provisioner.verify.peers import Peers
from provisioner.verify.readings import Metric, readings
from provisioner.verify.registry import plain_checks
from provisioner.verify.request import request_for
from provisioner.verify.results import CheckResult, NodeReport, blame

VALUE = {"pass": "1", "fail": "0", "unknown": "NaN"}
"""Of gpuprov_check. A check that does not apply, or has only a note (gpuprov_note), has no sample."""

LOCK = "/run/gpuprov-health.lock"
LOOKS = "/var/lib/gpuprov/health/last-look.json"


def main(arguments: list[str]) -> int:
    """Judge this node and write the metrics: 0 where that was done, healthy or not; 1 where it could not be done, and
    the metrics say so; 2 for another call. Where another one is at work nothing is done."""
    if len(arguments) != 2:
        print("health.pyz EXPECTED.json FILE.prom", file=sys.stderr)
        return 2
    if arguments[0] == "--ended":
        return ended(Path(arguments[1]), os.environ.get("SERVICE_RESULT", ""))
    expected_file, out = map(Path, arguments)
    with Path(os.environ.get("GPUPROV_HEALTH_LOCK", LOCK)).open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        began = time.monotonic()
        try:
            expected = Expected.from_json(json.loads(expected_file.read_text(encoding="utf-8")))
            bundle = with_looks(probe(expected))
            facts = read(bundle)
            report = judge(facts, expected)
            report = replace(report, checks=tuple(merge(report.checks)))
            keep_looks(facts)
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            write(out, metrics(None, time.time(), time.monotonic() - began))
            return 1
        write(out, metrics(report, time.time(), time.monotonic() - began, readings(facts, expected)))
        for check in report.condemned:
            print(f"{check.id}: {check.status}: {check.message or check.says}")
    return 0


def ended(out: Path, result: str) -> int:
    """After the service. What it wrote stands where it ended well (systemd.exec(5), SERVICE_RESULT). Killed for its
    time or memory, it would leave the metrics of the look before, which go on saying that the node is ok."""
    if result != "success":
        print(f"the checks did not end ({result or 'no result'}): the node is not known to be ok", file=sys.stderr)
        for leftover in out.parent.glob(f".{out.name}.*"):
            leftover.unlink(missing_ok=True)
        write(out, metrics(None, time.time(), 0.0))
    return 0


def probe(expected: Expected) -> Bundle:
    """What this node's tools say, by the probe that `gpuprov verify` sends."""
    request = request_for(expected)
    program = root_python.text_of(probe_source(), request.to_json())
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-"],
            input=program.encode(),
            capture_output=True,
            timeout=request.deadline + 20,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Bundle(error="the probe did not end")
    bundle = decode(done.stdout)
    return Bundle(error=f"{bundle.error} (exit status {done.returncode})") if bundle.error else bundle


def with_looks(bundle: Bundle) -> Bundle:
    """With what counters stood at when this node was looked at before."""
    try:
        text = _looks_file().read_text(encoding="utf-8", errors="replace")
    except OSError:
        return bundle
    return replace(bundle, files={**bundle.files, last_look.FILE: Output(text, rc=0)})


def keep_looks(facts: Facts) -> None:
    """For the next look. Where it cannot be kept, that one counts from the boot."""
    looks = growth.looks(facts)
    if looks is None:
        return
    try:
        write(_looks_file(), json.dumps(looks))
    except OSError as error:
        print(f"{_looks_file()}: {error}", file=sys.stderr)


def _looks_file() -> Path:
    return Path(os.environ.get("GPUPROV_HEALTH_LOOKS", LOOKS))


def judge(facts: Facts, expected: Expected) -> NodeReport:
    """Every plain check of gpuprov on this node alone."""
    node = check_runner.NodeUnderTest("node", facts, expected, None)
    peers = Peers({node.name: node.facts})
    results: dict[str, CheckResult] = {}
    explained_by: dict[str, tuple[str, ...]] = {}
    suppresses: dict[str, tuple[str, ...]] = {}
    for function, declared in plain_checks():
        outcome = check_runner.run(function, declared, node, peers)
        results[declared.id] = result(declared, outcome)
        explained_by[declared.id], suppresses[declared.id] = declared.follows, declared.silences
    return NodeReport(
        node.name,
        "",
        "",
        expected.machine,
        expected.simulated,
        tuple(blame(results, explained_by, suppresses)),
        error=facts.error,
    )


def result(declared: Check, outcome: check_runner.Outcome) -> CheckResult:
    status = outcome.status if outcome.status in (*VALUE, "note") else "skip"
    lowered = outcome.unverified and declared.severity == "fatal"
    action = outcome.action or declared.action
    return CheckResult(  # its status was looked at above, and its action is a check's
        declared.id, "warn" if lowered else declared.severity, status, action, declared.says,  # type: ignore[arg-type]
        message=outcome.message, unread=outcome.unread, lowered=lowered,
    )  # fmt: skip


def metrics(report: NodeReport | None, at: float, seconds: float, more: Iterable[Metric] = ()) -> str:
    """The metrics as Prometheus' text; None: nothing could be judged, and the node is not ok. `more`: readings."""
    checks = report.checks if report is not None else ()
    simulated = " (SIMULATED hardware)" if report is not None and report.simulated else ""
    samples = {f'{{check="{c.id}",severity="{c.severity}"}}': VALUE[c.status] for c in checks if c.status in VALUE}
    notes = {f'{{check="{c.id}"}}': "1" for c in checks if c.status == "note"}
    ok = report is not None and report.ok
    rows = (
        Metric("gpuprov_check", f"1 passed, 0 failed, NaN could not be answered{simulated}", samples),
        Metric("gpuprov_note", f"Worth knowing, and no failure{simulated}", notes),
        Metric("gpuprov_node_ok", f"No fatal check failed or is unknown{simulated}", {"": str(int(ok))}),
        Metric("gpuprov_simulated", "Whether the hardware is simulated", {"": str(int(bool(simulated)))}),
        Metric("gpuprov_check_timestamp_seconds", "When the checks ended", {"": f"{at:.0f}"}),
        Metric("gpuprov_check_duration_seconds", "How long they took", {"": f"{seconds:.2f}"}),
        *(replace(row, about=row.about + simulated) for row in more),
    )
    return "".join(f"{row}\n" for row in rows)


def write(out: Path, text: str) -> None:
    """Whole or not at all, readable by node_exporter; a name that it does not collect until then."""
    out.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            os.fchmod(handle, 0o644)  # the file that was written, whatever has its name by now
        Path(temporary).replace(out)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
