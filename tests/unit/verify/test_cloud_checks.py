"""What a node was told by its cloud, as the probe brings it home: green, red, unreadable, not applicable."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.spec.groups import Capacity, Group
from provisioner.verify.expectations import INTERRUPTION, Expected
from provisioner.verify.health import judge
from provisioner.verify.parsers import Unreadable, interruption
from provisioner.verify.probe import node as probe
from provisioner.verify.request import drift_request, request_for
from provisioner.verify.results import CheckResult
from tests.support.healthy_bundle import bundle, expected, healthy
from tests.support.healthy_host import NOW

P4D, NDV4 = "p4d.24xlarge", "Standard_ND96asr_v4"
SPOT = Capacity(kind="spot", fallback=("on-demand",))
QUIET: dict[str, Any] = {
    "notice": None, "withdrawn": None, "rebalance": None, "silent_since": None, "silent": "", "hook": None,
}  # fmt: skip
NOTICE = {"action": "terminate", "time": "2023-11-14T22:15:00Z", "seen": NOW - 20}
"""100 s after the bundle was collected."""
HOOK = {"notice": "terminate 2023-11-14T22:15:00Z", "began": NOW, "state": "ended", "result": "success", "status": 0,
        "output": ["drained"]}  # fmt: skip


def spot(machine: str = P4D, **changed: Any) -> Expected:
    return replace(expected(machine, "quick", Group(machine=machine, capacity=SPOT)), **changed)


def text(record: Any = None, hook: str = "") -> str:
    return json.dumps({"record": record if isinstance(record, str) else json.dumps(record), "hook": hook})


def judged(file: str | None, wanted: Expected | None = None) -> dict[str, CheckResult]:
    wanted = wanted or spot()
    texts = healthy(P4D) | ({"interruption.json": file} if file is not None else {})
    if file is None:
        texts.pop("interruption.json", None)
    report = judge(bundle(texts), wanted)
    return {check.id: check for check in report.checks if check.id.startswith("cloud.")}


@pytest.mark.parametrize(
    ("changed", "statuses", "says"),
    [
        ({}, ("pass", "pass"), ""),
        ({"rebalance": {"time": "2023-11-14T22:00:00Z", "seen": NOW}}, ("pass", "pass"), ""),
        ({"withdrawn": NOTICE, "hook": HOOK}, ("pass", "pass"), ""),
        ({"notice": NOTICE}, ("fail", "pass"), "terminate at 2023-11-14T22:15:00Z, in 100 s; no hook was run"),
        ({"notice": NOTICE, "hook": HOOK}, ("fail", "pass"), "hooks.interrupted ended well; `gpuprov up` restores"),
        ({"notice": NOTICE, "hook": HOOK | {"state": "running"}}, ("fail", "pass"), "hooks.interrupted runs"),
        ({"notice": NOTICE, "hook": HOOK | {"result": "exit-code", "status": 3}}, ("fail", "pass"),
         "failed, exit status 3; last line of its output: drained"),
        ({"notice": NOTICE, "hook": HOOK | {"result": "timeout", "status": None, "output": []}}, ("fail", "pass"),
         "hooks.interrupted failed, timeout; "),
        ({"silent_since": NOW - 30, "silent": "refused"}, ("pass", "pass"), ""),
        ({"silent_since": NOW - 90, "silent": "refused"}, ("pass", "fail"), "no answer for 90 s: refused"),
        ({"notice": NOTICE, "silent_since": NOW - 90}, ("fail", "fail"), "no reason reported"),
    ],
)  # fmt: skip
def test_what_the_watcher_wrote(changed: dict[str, Any], statuses: tuple[str, str], says: str) -> None:
    found = judged(text(QUIET | changed))
    assert (found["cloud.interruption"].status, found["cloud.metadata"].status) == statuses
    assert says in found["cloud.interruption"].message + found["cloud.metadata"].message


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (None, "not in the bundle"),
        (json.dumps({"record": None, "hook": ""}), "written nothing since boot"),
        (text("not json"), "not JSON"),
        (text({"silent": ""}), "not the watcher's record"),
        (text(QUIET | {"notice": {"action": "terminate"}}), "a notice without its action and time"),
        (text(QUIET | {"notice": "soon"}), "a notice without its action and time"),
        (json.dumps({"record": 7, "hook": ""}), "no record"),
        ("[]", "no object"),
    ],
)
def test_what_can_not_be_read_is_unknown_and_never_fine(file: str | None, says: str) -> None:
    for check in judged(file).values():
        assert check.status == "unknown"
        assert says in check.message


def test_it_is_asked_and_judged_where_a_machine_can_be_taken_alone() -> None:
    for wanted in (expected(P4D, "quick"), expected("dgx-h100", "quick")):
        assert INTERRUPTION not in (wanted.units or ())
        assert "interruption.json" not in {**request_for(wanted).files, **drift_request(wanted).files}
    assert {check.status for check in judged(text(QUIET | {"notice": NOTICE}), expected(P4D, "quick")).values()} == {
        "skip"
    }
    fallback = Capacity(kind="on-demand", fallback=("spot",))
    wanted = expected(P4D, "quick", Group(machine=P4D, capacity=fallback))
    assert "interruption.json" in request_for(wanted).files
    assert "interruption.json" in drift_request(wanted).files


def test_a_rehearsal_has_no_metadata_service_to_miss() -> None:
    found = judged(text(QUIET | {"silent_since": NOW - 900}), spot(simulated=True))
    assert found["cloud.metadata"].status == "skip"
    assert found["cloud.interruption"].status == "pass"


def test_the_probe_reads_record_and_hook(tmp_path: Path) -> None:
    record, hook = tmp_path / "record.json", tmp_path / "hook"
    there_is_none = probe.interruption(str(record), str(hook))
    assert interruption.parse(there_is_none["text"]) == interruption.Interruption(False)
    record.write_text(json.dumps(QUIET | {"notice": NOTICE, "hook": HOOK}))
    hook.write_text("true\n")
    found = interruption.parse(probe.interruption(str(record), str(hook))["text"])
    assert found.digest == hashlib.sha256(b"true\n").hexdigest()
    assert found.notice == interruption.Notice("terminate", "2023-11-14T22:15:00Z", NOW - 20)
    assert found.notice.at == NOW + 100
    assert found.hook is not None
    assert found.hook.output == ("drained",)
    record.unlink()
    record.mkdir()
    assert probe.interruption(str(record), str(hook))["missing"]


@pytest.mark.parametrize("given", ["", "{", "null", "[" * 5000, json.dumps({"record": "{" * 9000, "hook": ""})])
def test_any_text_is_read_or_refused(given: str) -> None:
    with pytest.raises(Unreadable):
        interruption.parse(given)
