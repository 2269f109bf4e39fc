"""What a spot node hears of its end, and what it does then: the watcher of role interruption before a metadata service
that answers as Amazon's does, and before a stand-in for systemd."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.role_script import ROLES

NOTICE = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
SOME_TIME = "2099-11-21T22:10:00Z"
PROGRAM = ROLES / "interruption" / "files" / "gpuprov-interruption"


def part(name: str) -> ModuleType:
    """A module of the program."""
    if str(PROGRAM) not in sys.path:
        sys.path.insert(0, str(PROGRAM))
    return importlib.import_module(f"interruption.{name}")


SYSTEMD_RUN = """#!/bin/sh
cd "$FAKE"
for word in "$@"; do
  case $word in --setenv=*) export "${word#--setenv=}";; esac
  hook=$word
done
test ! -e refused || { echo "Access denied"; exit 1; }
echo "$*" >>started
echo activating >state
setsid sh -c '
  sh "$0" >output 2>&1 </dev/null; echo $? >status
  if [ "$(cat status)" = 0 ]; then echo active; else echo failed; fi >state.new; mv state.new state
' "$hook" >/dev/null 2>&1 </dev/null &
"""
SYSTEMCTL = """#!/bin/sh
cd "$FAKE"
if [ "$1" != show ]; then rm -f state status output; exit 0; fi
state=$(cat state 2>/dev/null || echo inactive)
result=success; test "$state" = failed && result=exit-code
echo "ActiveState=$state"; echo "Result=$result"; echo ExecMainCode=1; echo "ExecMainStatus=$(cat status 2>/dev/null)"
echo InvocationID=
"""
JOURNALCTL = '#!/bin/sh\ntest "$1" = --sync || cat "$FAKE/output"\n'


def at(seconds: float) -> str:
    """A time so many seconds from now, as AWS writes it."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def notice(seconds: float = 120, action: str = "terminate") -> str:
    return json.dumps({"action": action, "time": at(seconds)})


class Imds:
    """Amazon's metadata service: `answers` has path → (status, text); what is not there is 404."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        self.token, self.tokens, self.asked, self.hangs = "token-1", 0, 0, 0.0
        self.header = "X-aws-ec2-metadata-token"
        imds = self

        class Answers(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                imds.tokens += 1
                lifetime = self.headers.get(f"{imds.header}-ttl-seconds")
                right = self.path == "/latest/api/token" and lifetime == "21600"
                self.give(*imds.answers.get(self.path, (200, imds.token) if right else (400, "")))

            def do_GET(self) -> None:
                imds.asked += 1
                time.sleep(imds.hangs)
                right = self.headers.get(imds.header) == imds.token
                right = right or (self.path.startswith("/metadata/") and self.headers.get("Metadata") == "true")
                right = right or self.path == "/latest/meta-data/spot/termination-time"  # Tencent Cloud's, open to all
                self.give(*(imds.answers.get(self.path, (404, "")) if right else (401, "")))

            def give(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture
def imds() -> Iterator[Imds]:
    test_imds = Imds()
    yield test_imds
    test_imds.server.shutdown()
    test_imds.server.server_close()


class Node:
    """A node with a hook, whose watcher asks `imds`; each `look` is one question."""

    def __init__(self, folder: Path, imds: Imds, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.imds = folder, imds
        programs = folder / "bin"
        programs.mkdir()
        for name, text in (("systemd-run", SYSTEMD_RUN), ("systemctl", SYSTEMCTL), ("journalctl", JOURNALCTL)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("FAKE", str(folder))
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
        self.record, self.hook, self.prom = folder / "record.json", folder / "hook", folder / "node.prom"
        self.hook.write_text('echo "$GPUPROV_NODE $GPUPROV_ACTION $GPUPROV_TIME" | tee -a ran\n')
        self.module: ModuleType = part("watcher")
        self.begin()

    @property
    def options(self) -> dict[str, str]:
        port = self.imds.server.server_address[1]
        return {"node": "train-0", "record": str(self.record), "hook": str(self.hook), "textfile": str(self.prom),
                "metadata": f"127.0.0.1:{port}", "ends": "", "service": "aws"}  # fmt: skip

    def options_of_a_block(self, ends: str, metadata: str = "") -> None:
        """The watcher of a machine that is of a capacity block."""
        self.watcher = self.module.Watcher(Namespace(**{**self.options, "ends": ends, "metadata": metadata}))

    def begin(self) -> None:
        """Start the watcher, or start it again."""
        self.watcher = self.module.Watcher(Namespace(**self.options))

    def look(self, times: int = 1) -> dict[str, Any]:
        """What the record says after so many questions."""
        for _ in range(times):
            self.watcher.look()
            if self.hook.exists() and "sleep" not in self.hook.read_text():  # it ends by itself, in its time
                wait(lambda: not self.running())
        record: dict[str, Any] = json.loads(self.record.read_text())
        return record

    def says(self, text: str | None, path: str = NOTICE, status: int = 200) -> None:
        self.imds.answers.pop(path, None)
        if text is not None:
            self.imds.answers[path] = (status, text)

    def running(self) -> bool:
        """Whether the hook's unit is at work."""
        file = self.folder / "state"
        return file.exists() and file.read_text().strip() == "activating"

    def ran(self) -> list[str]:
        file = self.folder / "ran"
        return file.read_text().splitlines() if file.exists() else []

    def started(self) -> list[str]:
        file = self.folder / "started"
        return file.read_text().splitlines() if file.exists() else []

    def process(self, **environment: str) -> subprocess.Popen[str]:
        """The watcher as the service runs it."""
        arguments = [argument for name, value in self.options.items() for argument in (f"--{name}", value)]
        return subprocess.Popen(
            [sys.executable, "-I", str(PROGRAM), *arguments, "--every", "0.05"],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def node(tmp_path: Path, imds: Imds, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, imds, monkeypatch)


def wait(condition: Any) -> None:
    for _ in range(400):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("nothing came")


def test_without_a_notice_nothing_is_done_and_one_token_serves(node: Node) -> None:
    record = node.look(5)
    assert record == dict.fromkeys(record) | {"silent": ""}
    assert (node.imds.tokens, node.ran()) == (1, [])
    written = node.record.stat().st_mtime_ns
    node.look(3)
    assert node.record.stat().st_mtime_ns == written
    assert "gpuprov_interruption_pending 0\n" in node.prom.read_text()


def test_a_notice_is_written_down_and_the_hook_runs_once(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.look()
    node.says(text := notice())
    sent_notice = json.loads(text)
    record = node.look(5)
    assert {key: record["notice"][key] for key in sent_notice} == sent_notice
    assert abs(record["notice"]["seen"] - time.time()) < 60
    assert node.ran() == [f"train-0 terminate {sent_notice['time']}"]
    assert (record["hook"]["state"], record["hook"]["result"], record["hook"]["status"]) == ("ended", "success", 0)
    assert record["hook"]["output"] == node.ran()
    assert f"NOTICE: this machine: terminate at {sent_notice['time']}" in capsys.readouterr().out
    metrics = node.prom.read_text()
    assert "gpuprov_interruption_pending 1\n" in metrics
    assert "gpuprov_interruption_hook_ok 1\n" in metrics
    assert (node.record.stat().st_mode & 0o777, node.prom.stat().st_mode & 0o777) == (0o644, 0o644)


def test_an_expired_token_is_replaced(node: Node) -> None:
    node.look()
    node.imds.token = "token-2"
    node.says(notice())
    assert node.look()["notice"] is not None
    assert node.imds.tokens == 2


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/latest/api/token", 403, "no token: status 403"),
        (NOTICE, 500, "is answered with status 500"),
        (NOTICE, 401, "is answered with status 401"),
        (REBALANCE, 503, "is answered with status 503"),
    ],
)
def test_a_refusal_is_said_and_is_no_answer(node: Node, path: str, status: int, message: str) -> None:
    node.says("", path, status)
    record = node.look()
    assert message in record["silent"]
    assert abs(record["silent_since"] - time.time()) < 60
    assert "gpuprov_interruption_answered 0\n" in node.prom.read_text()
    node.says(None, path)
    assert node.look()["silent_since"] is None


def test_a_service_that_hangs_holds_nothing_up_for_long(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part("metadata"), "ANSWER_S", 0.3)
    node.imds.hangs = 3.0
    assert "timed out" in node.look()["silent"]
    since = node.look()["silent_since"]
    assert node.look()["silent_since"] == since
    node.imds.hangs = 0.0
    node.says(notice())
    record = node.look()
    assert (record["silent_since"], record["hook"]["state"]) == (None, "ended")


def test_nobody_there(node: Node) -> None:
    node.imds.server.server_close()
    assert node.look()["silent_since"] is not None
    assert node.ran() == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>404</html>",
        "[]",
        "null",
        '"terminate"',
        "[" * 20_000,
        json.dumps({"action": "terminate"}),
        json.dumps({"action": "terminate", "time": "soon"}),
        json.dumps({"action": "terminate", "time": "2026-13-45T99:00:00Z"}),
        json.dumps({"action": "terminate", "time": ["2026-11-21T22:10:00Z"]}),
        json.dumps({"action": "x\nEVIL=1", "time": SOME_TIME}),
        json.dumps({"action": "$(reboot)", "time": SOME_TIME}),
        json.dumps({"action": None, "time": SOME_TIME}),
    ],
)
def test_what_is_no_notice_is_said_and_starts_nothing(node: Node, text: str) -> None:
    node.says(text)
    record = node.look(2)
    assert (record["notice"], record["hook"], node.started()) == (None, None, [])
    assert NOTICE in record["silent"]
    node.says(notice())
    assert node.look()["hook"]["state"] == "ended"


def test_a_broken_recommendation_hides_no_notice(node: Node) -> None:
    node.says(notice())
    node.says("<html>", REBALANCE)
    record = node.look()
    assert record["hook"]["state"] == "ended"
    assert REBALANCE in record["silent"]


def test_a_recommendation_to_rebalance_is_said_and_not_acted_upon(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.says(json.dumps({"noticeTime": "2026-11-21T22:10:00Z"}), REBALANCE)
    record = node.look(3)
    assert record["rebalance"]["time"] == "2026-11-21T22:10:00Z"
    assert (record["notice"], node.started()) == (None, [])
    assert capsys.readouterr().out.count("recommends to move away") == 1
    assert "gpuprov_interruption_rebalance 1\n" in node.prom.read_text()
    node.says(None, REBALANCE)
    assert node.look()["rebalance"] is None


def test_a_notice_that_is_taken_back_and_comes_again(node: Node) -> None:
    node.says(first := notice())
    node.look()
    node.says(None)
    record = node.look()
    assert (record["notice"], record["withdrawn"]["action"]) == (None, "terminate")
    assert "gpuprov_interruption_pending 0\n" in node.prom.read_text()
    node.says(first)
    assert node.look()["notice"] is not None
    wait(lambda: len(node.ran()) == 1)
    node.says(notice(300, "stop"))
    assert node.look()["hook"]["notice"].startswith("stop ")
    wait(lambda: len(node.ran()) == 2)


@pytest.mark.parametrize(("seconds", "deadline"), [(119, 99), (60, 40), (22, 5), (-30, 5), (3600, 100)])
def test_the_hook_ends_before_the_machine(node: Node, seconds: float, deadline: int) -> None:
    node.says(notice(seconds))
    node.look()
    (command,) = node.started()
    timeout_s = int(command.split("--property=TimeoutStartSec=")[1].split()[0])
    assert deadline - 15 <= timeout_s <= deadline  # by as much as a busy machine may take
    assert timeout_s >= 5
    assert "--property=TimeoutStopSec=5" in command


def test_the_end_of_a_block_is_a_notice_ten_minutes_before(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody tells the machine; the metadata service is not asked."""
    monkeypatch.setattr(part("aws"), "BLOCK_S", 2)
    end = at(4)
    node.options_of_a_block(end)
    assert node.look()["notice"] is None
    wait(lambda: node.look()["notice"])
    state = node.look(2)
    assert (state["notice"]["action"], state["notice"]["time"]) == ("terminate", end)
    assert len(node.started()) == 1 and state["hook"]["result"] == "success"
    assert node.imds.asked == 0


def test_the_end_of_a_block_is_a_metric_from_the_start(node: Node) -> None:
    node.look()
    assert "block_end" not in node.prom.read_text()
    node.options_of_a_block("2026-12-01T11:00:00Z")
    node.look()
    assert "gpuprov_interruption_block_end_timestamp_seconds 1796122800\n" in node.prom.read_text()


def test_the_hook_of_a_block_has_almost_ten_minutes(node: Node) -> None:
    node.options_of_a_block(at(595))
    node.look()
    assert re.search(r"TimeoutStartSec=57[0-5] ", node.started()[0])


def test_a_spot_machine_of_a_group_that_asked_for_a_block_first_hears_both(node: Node) -> None:
    node.options_of_a_block(at(3600), metadata=node.options["metadata"])
    node.says(notice(110))
    assert node.look()["notice"]["action"] == "terminate"


def test_a_hook_that_fails(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.hook.write_text("for i in $(seq 30); do echo line $i; done; exit 7\n")
    node.says(notice())
    hook = node.look(3)["hook"]
    assert (hook["state"], hook["result"], hook["status"]) == ("ended", "exit-code", 7)
    assert hook["output"][-1] == "line 30"
    assert len(hook["output"]) == 20
    assert "gpuprov_interruption_hook_ok 0\n" in node.prom.read_text()
    assert "the hook ended: exit status 7" in capsys.readouterr().out
    assert len(node.started()) == 1


def test_a_hook_that_systemd_does_not_start(node: Node) -> None:
    (node.folder / "refused").touch()
    node.says(notice())
    hook = node.look(3)["hook"]
    assert (hook["state"], hook["result"], hook["output"]) == ("ended", "not started", ["Access denied"])


def test_no_hook_and_one_that_comes_while_the_notice_stands(node: Node) -> None:
    text = node.hook.read_text()
    node.hook.unlink()
    node.says(notice())
    assert node.look()["hook"] is None
    node.hook.write_text(text)
    assert node.look()["hook"]["state"] == "ended"
    assert len(node.ran()) == 1


def test_a_restart_forgets_nothing_and_repeats_nothing(node: Node) -> None:
    node.says(notice())
    previous_record = node.look()
    node.begin()
    assert node.look() == previous_record
    assert len(node.started()) == 1


def test_killed_while_the_hook_runs(node: Node) -> None:
    node.hook.write_text("echo began >>ran; sleep 1.5; echo end >>ran; exit 4\n")
    node.says(notice())
    process = node.process()
    try:
        wait(node.ran)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert json.loads(node.record.read_text())["hook"]["state"] == "running"
    node.begin()
    hook = node.look()["hook"]
    assert (hook["state"], hook["status"]) == ("ended", 4)
    assert node.ran() == ["began", "end"]
    assert len(node.started()) == 1


def test_killed_before_the_hook_was_started(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.says(notice())
    with monkeypatch.context() as patch:
        patch.setattr(node.watcher.hook, "start", lambda _: sys.exit("killed"))
        with pytest.raises(SystemExit):
            node.look()
    assert (node.started(), json.loads(node.record.read_text())["hook"]["state"]) == ([], "running")
    node.begin()
    assert node.look(2)["hook"]["state"] == "ended"
    assert len(node.ran()) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"notice": null}', "\udcff"])
def test_a_record_that_can_not_be_read_begins_anew(node: Node, text: str) -> None:
    node.record.write_bytes(text.encode(errors="surrogateescape"))
    node.begin()
    node.says(notice())
    assert node.look()["hook"]["state"] == "ended"


def test_systemd_hears_that_it_is_there_and_alive(node: Node) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify_socket:
        notify_socket.bind(str(node.folder / "notify"))
        notify_socket.settimeout(20)
        process = node.process(NOTIFY_SOCKET=str(node.folder / "notify"))
        try:
            heard = [notify_socket.recv(100) for _ in range(3)]
        finally:
            process.terminate()
            process.communicate()
    assert heard == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]


def scheduled(*events: dict[str, Any]) -> tuple[int, str]:
    """As Azure's page of Scheduled Events has it."""
    return 200, json.dumps({"DocumentIncarnation": 1, "Events": list(events)})


def event(kind: str, when: str, *names: str, status: str = "Scheduled") -> dict[str, Any]:
    return {"EventId": "602d9444", "EventType": kind, "ResourceType": "VirtualMachine", "Resources": list(names),
            "EventStatus": status, "NotBefore": when, "Description": "", "EventSource": "Platform"}  # fmt: skip


def test_azures_scheduled_events_are_notices_of_the_machine_that_they_name(node: Node) -> None:
    path, name = part("azure").EVENTS, part("azure").NAME
    node.watcher = node.module.Watcher(Namespace(**{**node.options, "service": "azure"}))
    node.imds.answers = {name: (200, "train-0"), path: scheduled()}
    assert node.look()["notice"] is None and node.imds.tokens == 0
    at_ = "Mon, 19 Nov 2035 18:29:47 GMT"
    node.imds.answers[path] = scheduled(event("Preempt", at_, "train-1"), event("Freeze", at_, "train-0"))
    assert node.look()["notice"] is None, "another machine of the availability set, and a pause"
    node.imds.answers[path] = scheduled(event("Preempt", at_, "train-1", "train-0"))
    state = node.look(2)
    assert (state["notice"]["action"], state["notice"]["time"]) == ("preempt", "2035-11-19T18:29:47Z")
    assert state["hook"]["output"] == ["train-0 preempt 2035-11-19T18:29:47Z"]
    node.imds.answers[path] = scheduled(event("Preempt", "", "train-0", status="Started"))
    assert node.look(2)["notice"]["time"] == "2035-11-19T18:29:47Z" and len(node.started()) == 1
    node.imds.answers[path] = scheduled()
    assert node.look()["withdrawn"]["action"] == "preempt"
    for wrong in ((200, "<html>"), (200, "[]"), scheduled(event("Preempt", "soon", "train-0")), (500, "")):
        node.imds.answers[path] = wrong
        assert node.look()["silent_since"] is not None
    node.imds.answers[path] = scheduled()
    assert node.look()["silent_since"] is None


def test_tencent_clouds_time_is_a_notice_in_chinas_time(node: Node) -> None:
    path = part("tencent").NOTICE
    node.watcher = node.module.Watcher(Namespace(**{**node.options, "service": "tencent"}))
    assert node.look()["notice"] is None and node.imds.tokens == 0, "not there until the machine is to go"
    node.imds.answers[path] = (200, "2035-11-19 18:29:47\n")
    state = node.look(2)
    assert (state["notice"]["action"], state["notice"]["time"]) == ("terminate", "2035-11-19T10:29:47Z")
    assert state["hook"]["output"] == ["train-0 terminate 2035-11-19T10:29:47Z"] and len(node.started()) == 1
    for wrong in ((200, "<html>"), (200, ""), (500, "")):
        node.imds.answers[path] = wrong
        assert node.look()["silent_since"] is not None
    node.imds.answers = {}
    assert node.look()["withdrawn"]["action"] == "terminate"


def test_alibaba_clouds_time_is_asked_with_its_token(node: Node) -> None:
    path = part("alicloud").NOTICE
    node.imds.header = "X-aliyun-ecs-metadata-token"
    node.watcher = node.module.Watcher(Namespace(**{**node.options, "service": "alicloud"}))
    assert node.look()["notice"] is None and node.imds.tokens == 1, "404 until the machine is to go"
    node.imds.answers[path] = (200, "\n")
    assert node.look()["silent_since"] is None and node.look()["notice"] is None, "or empty"
    node.imds.answers[path], node.imds.token = (200, "2035-11-19T10:29:47Z\n"), "token-2"
    state = node.look(2)
    assert (state["notice"]["action"], state["notice"]["time"]) == ("terminate", "2035-11-19T10:29:47Z")
    assert state["hook"]["output"] == ["train-0 terminate 2035-11-19T10:29:47Z"] and len(node.started()) == 1
    assert node.imds.tokens == 2, "one for each token that was good once"
    for wrong in ((200, "<html>"), (200, "2035-11-19 10:29:47"), (500, ""), (403, "")):
        node.imds.answers[path] = wrong
        assert node.look()["silent_since"] is not None
    node.imds.answers = {}
    assert node.look()["withdrawn"]["action"] == "terminate"


@pytest.mark.parametrize(
    ("service", "text"),
    [
        ("tencent", "0001-01-01 00:00:00"),
        ("azure", "Fri, 31 Dec 9999 23:59:59 -1200"),
    ],
)
def test_a_time_that_no_calendar_has_is_said_and_ends_nothing(node: Node, service: str, text: str) -> None:
    node.watcher = node.module.Watcher(Namespace(**{**node.options, "service": service}))
    path = part("tencent").NOTICE if service == "tencent" else part("azure").EVENTS
    page = (200, text) if service == "tencent" else scheduled(event("Preempt", text, "train-0"))
    node.imds.answers = {part("azure").NAME: (200, "train-0"), path: page}
    state = node.look(2)
    assert path in state["silent"] and state["notice"] is None and node.started() == []


def test_the_first_year_has_four_digits(node: Node) -> None:
    node.watcher = node.module.Watcher(Namespace(**{**node.options, "service": "tencent"}))
    node.imds.answers[part("tencent").NOTICE] = (200, "0001-01-02 00:00:00")
    assert node.look()["notice"]["time"] == "0001-01-01T16:00:00Z"


def test_an_end_of_a_block_that_is_no_time_is_said_once_and_ignored(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.options_of_a_block("2026-11-21T22:10:00+00:00", metadata=node.options["metadata"])
    assert node.look(2)["notice"] is None
    assert capsys.readouterr().out.count("--ends is ignored: no time: '2026-11-21T22:10:00+00:00'") == 1
    node.says(notice())
    assert node.look()["hook"]["state"] == "ended"


def test_azure_is_asked_for_a_name_until_it_says_one_and_case_is_no_matter(node: Node) -> None:
    path, name = part("azure").EVENTS, part("azure").NAME
    node.watcher = node.module.Watcher(Namespace(**{**node.options, "service": "azure"}))
    taken = scheduled(event("Preempt", "Mon, 19 Nov 2035 18:29:47 GMT", "Train-0"))
    node.imds.answers = {name: (200, "\n"), path: taken}
    assert "says no name" in node.look()["silent"]
    node.imds.answers[name] = (200, "TRAIN-0")
    state = node.look()
    assert (state["silent_since"], state["notice"]["action"]) == (None, "preempt")


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n", b""])
def test_an_answer_that_drips_has_one_deadline(node: Node, monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    monkeypatch.setattr(part("metadata"), "ANSWER_S", 0.3)
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(head)
                for _ in range(60):
                    if stop.wait(0.1):
                        return
                    try:
                        connection.sendall(b"a")
                    except OSError:
                        return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        began = time.monotonic()
        with pytest.raises(part("metadata").Silent, match="timed out"):
            part("metadata").Metadata(f"127.0.0.1:{server.getsockname()[1]}")._call("GET", "/x", {})
        assert time.monotonic() - began < 3
        stop.set()
        thread.join()


def test_rights_are_given_to_the_file_and_not_to_what_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "chmod", lambda *_, **__: pytest.fail("chmod by path"))
    part("node").write(str(tmp_path / "state.prom"), "x 1\n")
    assert (tmp_path / "state.prom").stat().st_mode & 0o777 == 0o644
