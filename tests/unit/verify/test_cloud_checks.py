"""What a node was told by its cloud, as the probe brings it home: green, red, unreadable, not applicable."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.spec.groups import Capacity, Group
from provisioner.verify.expectations import INTERRUPTION, Expected
from provisioner.verify.facts import read
from provisioner.verify.health import judge
from provisioner.verify.parsers import Unreadable, interruption, maintenance
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


def judged(file: str | None, expectation: Expected | None = None) -> dict[str, CheckResult]:
    expectation = expectation or spot()
    texts = healthy(P4D) | ({"interruption.json": file} if file is not None else {})
    if file is None:
        texts.pop("interruption.json", None)
    report = judge(read(bundle(texts)), expectation)
    return {check.id: check for check in report.checks if check.id in ("cloud.interruption", "cloud.metadata")}


@pytest.mark.parametrize(
    ("changed", "statuses", "message"),
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
def test_what_the_watcher_wrote(changed: dict[str, Any], statuses: tuple[str, str], message: str) -> None:
    checks = judged(text(QUIET | changed))
    assert (checks["cloud.interruption"].status, checks["cloud.metadata"].status) == statuses
    assert message in checks["cloud.interruption"].message + checks["cloud.metadata"].message


@pytest.mark.parametrize(
    ("file", "message"),
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
def test_what_can_not_be_read_is_unknown_and_never_fine(file: str | None, message: str) -> None:
    for check in judged(file).values():
        assert check.status == "unknown"
        assert message in check.message


def test_it_is_asked_and_judged_where_a_machine_can_be_taken_alone() -> None:
    for expectation in (expected(P4D, "quick"), expected("dgx-h100", "quick")):
        assert INTERRUPTION not in (expectation.units or ())
        assert "interruption.json" not in {**request_for(expectation).files, **drift_request(expectation).files}
    assert {check.status for check in judged(text(QUIET | {"notice": NOTICE}), expected(P4D, "quick")).values()} == {
        "skip"
    }
    fallback = Capacity(kind="on-demand", fallback=("spot",))
    expectation = expected(P4D, "quick", Group(machine=P4D, capacity=fallback))
    assert "interruption.json" in request_for(expectation).files
    assert "interruption.json" in drift_request(expectation).files


def test_a_sandbox_has_no_metadata_service_to_miss() -> None:
    checks = judged(text(QUIET | {"silent_since": NOW - 900}), spot(simulated=True))
    assert checks["cloud.metadata"].status == "skip"
    assert checks["cloud.interruption"].status == "pass"


def test_the_probe_reads_record_and_hook(tmp_path: Path) -> None:
    record, hook = tmp_path / "record.json", tmp_path / "hook"
    there_is_none = probe.interruption(str(record), str(hook))
    assert interruption.parse(there_is_none["text"]) == interruption.Interruption(False)
    record.write_text(json.dumps(QUIET | {"notice": NOTICE, "hook": HOOK}))
    hook.write_text("true\n")
    parsed = interruption.parse(probe.interruption(str(record), str(hook))["text"])
    assert parsed.digest == hashlib.sha256(b"true\n").hexdigest()
    assert parsed.notice == interruption.Notice("terminate", "2023-11-14T22:15:00Z", NOW - 20)
    assert parsed.notice.at == NOW + 100
    assert parsed.hook is not None
    assert parsed.hook.output == ("drained",)
    record.unlink()
    record.mkdir()
    assert probe.interruption(str(record), str(hook))["missing"]


@pytest.mark.parametrize("given", ["", "{", "null", "[" * 5000, json.dumps({"record": "{" * 9000, "hook": ""})])
def test_any_text_is_read_or_refused(given: str) -> None:
    with pytest.raises(Unreadable):
        interruption.parse(given)


RETIRED = [{"NotBefore": "21 Jan 2027 09:00:43 GMT", "Code": "instance-retirement", "Description": "scheduled",
            "EventId": "instance-event-0d59937288b749b32", "State": "active"}]  # fmt: skip
"""https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/viewing_scheduled_events.html"""
REDEPLOY = {"EventId": "A", "EventType": "Redeploy", "ResourceType": "VirtualMachine", "Resources": ["Train-0"],
            "EventStatus": "Scheduled", "NotBefore": "Mon, 19 Sep 2026 18:29:47 GMT"}  # fmt: skip
"""https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events"""


@pytest.mark.parametrize(
    ("machine", "events", "status"),
    [
        (P4D, RETIRED, "fail"),
        (P4D, [RETIRED[0] | {"State": "completed"}], "pass"),
        (P4D, [], "pass"),
        (NDV4, {"DocumentIncarnation": 1, "Events": [REDEPLOY]}, "fail"),
        (NDV4, {"Events": [REDEPLOY | {"Resources": ["train-1"]}]}, "pass"),
        (NDV4, {"Events": [REDEPLOY | {"EventType": "Freeze"}]}, "pass"),
        (NDV4, {"Events": [REDEPLOY | {"EventStatus": "Started", "NotBefore": ""}]}, "fail"),
        (P4D, "soon", "unknown"),
        ("dgx-h100", RETIRED, "skip"),
    ],
)
def test_scheduled_events(machine: str, events: Any, status: str) -> None:
    document = json.dumps({"status": 200, "name": "train-0", "text": json.dumps(events)})
    check = {c.id: c for c in judge(read(bundle(healthy(machine) | {"maintenance.json": document})),
                                    expected(machine, "quick")).checks}["cloud.maintenance"]  # fmt: skip
    assert check.status == status, check.message


@pytest.mark.parametrize(
    ("machine", "openly", "status"),
    [(P4D, 401, "pass"), (P4D, 200, "fail"), (P4D, 404, "fail"), (P4D, None, "skip"), (NDV4, 200, "skip")],
)
def test_metadata_that_wants_no_token(machine: str, openly: int | None, status: str) -> None:
    document = json.dumps({"status": 200, "name": "train-0", "text": "[]", "without_token": openly})
    judged = judge(read(bundle(healthy(machine) | {"maintenance.json": document})), expected(machine, "quick"))
    assert {c.id: c.status for c in judged.checks}["cloud.metadata_token"] == status


def test_the_probe_asks_with_a_token_and_ends_in_time() -> None:
    requests: list[tuple[str, str, str | None]] = []

    class Service(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.give("t0k3n", self.headers.get("X-aws-ec2-metadata-token-ttl-seconds"))

        def do_GET(self) -> None:
            self.give(json.dumps(RETIRED), self.headers.get("X-aws-ec2-metadata-token"))

        def give(self, text: str, header: str | None) -> None:
            requests.append((self.command, self.path, header))
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        want = expected(P4D, "quick").maintenance
        assert want is not None
        answer = probe.maintenance(5, {**want, "address": f"127.0.0.1:{server.server_address[1]}"})
        server.shutdown()
    path = "/latest/meta-data/events/maintenance/scheduled"
    assert requests == [("GET", path, None), ("PUT", "/latest/api/token", "60"), ("GET", path, "t0k3n")]
    assert maintenance.without_token(answer["text"]) == 200
    assert [e.kind for e in maintenance.parse(answer["text"])] == ["instance-retirement"]
    unreachable = probe.maintenance(1, {**want, "address": "127.0.0.1:1"})
    assert unreachable["text"] == "" and unreachable["error"]
