"""How calls end: documents of errors, streams that nobody reads, interruptions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import typer

from provisioner.cli import json_output
from provisioner.cli import main as cli
from provisioner.cli.main import COMMANDS, Entry, run
from provisioner.common.errors import (
    ConfigureError,
    Declined,
    GpuprovError,
    InputError,
    Interrupted,
    LockedError,
    Problem,
    ProviderError,
    without_queries,
)
from provisioner.spec import schema
from tests.support.sandbox_cluster import ROOT

pytestmark = pytest.mark.heavy

BAD = "tests/unit/spec/bad/unknown-keys.yaml"


def shell(line: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A line of bash that knows `gpuprov`."""
    return subprocess.run(
        ["bash", "-c", f'gpuprov() {{ "{sys.executable}" -m provisioner "$@"; }}\n{line}'],
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
        env=os.environ | env,
    )


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Puts a function in as the command `try`, which takes --json."""

    def put(function: Callable[[], None]) -> None:
        def try_it(json_: bool = typer.Option(False, "--json")) -> None:
            function()

        monkeypatch.setattr(cli, "try_it", try_it, raising=False)
        monkeypatch.setitem(COMMANDS, "try", Entry("provisioner.cli.main:try_it", "for a test"))

    return put


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (GpuprovError("wrong", where="train-0", hint="do this"), 2, "wrong"),
        (InputError([Problem("c.yaml", 3, 5, "name", "bad", "good")]), 2, "c.yaml:3:5: bad (good)"),
        (ProviderError("no quota"), 3, "no quota"),
        (ConfigureError("apt broke"), 4, "apt broke"),
        (LockedError("somebody is there"), 5, "somebody is there"),
        (Interrupted("interrupted; progress is saved"), 130, "interrupted; progress is saved"),
        (Declined("nothing was created"), 0, "nothing was created"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (PermissionError(13, "Permission denied", "/there"), 2, "Permission denied"),
        (ZeroDivisionError("oh"), 1, "gpuprov: internal error, a bug in gpuprov: ZeroDivisionError: oh"),
        (typer.Exit(3), 3, "ended with exit code 3; standard error says why"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_is_a_document(
    error: BaseException,
    code: int,
    message: str,
    command: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def fails() -> None:
        raise error

    command(fails)
    assert run(["try", "--json"]) == code
    out, err = capsys.readouterr()
    document = json.loads(out)
    jsonschema.validate(document, schema.schema("error"))
    assert (document["exit_code"], document["error"]["message"]) == (code, message)
    assert isinstance(error, typer.Exit) or err
    if isinstance(error, InputError):
        assert [p["line"] for p in document["problems"]] == [3]
    assert run(["try"]) == code
    assert capsys.readouterr() == ("", err) or isinstance(error, ZeroDivisionError)


def test_an_answer_is_the_only_document(command: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    def answers_and_fails() -> None:
        json_output.write({"ok": True})
        raise ProviderError("afterwards")

    command(answers_and_fails)
    assert run(["try", "--json"]) == 3
    assert json.loads(capsys.readouterr().out) == {"ok": True}


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", BAD],
        ["status", "/nowhere.yaml"],
        ["plan", BAD],
        ["up", BAD, "--yes"],
        ["down", BAD],
        ["facts", "--bundle", "/nowhere"],
        ["verify", "--bundle", "/nowhere", "--machine", "p4e"],
        ["cost", "--machine", "p4e"],
        ["catalog", "p4e"],
        ["upgrade", BAD, "--batch", "many"],
        ["replace", BAD, "train-0"],
        ["gc"],
        ["sandbox", "faults", "--machine", "p4e"],
        ["verify", "--level", "deep"],
        ["status", "--nonsense"],
    ],
    ids=" ".join,
)
def test_every_command_keeps_the_promise(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = run([*arguments, "--json"])
    out, err = capsys.readouterr()
    document = json.loads(out)
    jsonschema.validate(document, schema.schema("error"))
    assert code == document["exit_code"] == 2
    assert document["error"]["message"].splitlines()[0] in err


def test_help_and_the_nodes_own_options_are_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--json", "--help"]) == 0
    assert '"ok"' not in capsys.readouterr().out
    assert run(["exec", "/nowhere.yaml", "ls", "--json"]) == 2
    assert capsys.readouterr().out == ""


VERIFY = "verify --bundle tests/unit/verify/captures/topo --machine p4d.24xlarge"
READERS = ("| true", "| head -c 3", ">&-", "<&- >&- 2>&-", "2>/dev/full")


@pytest.mark.parametrize(
    ("line", "code", "reader"),
    [
        *((line, code, reader) for line, code in (("validate " + BAD, 2), ("catalog", 0)) for reader in READERS),
        (VERIFY, 1, "| head -c 3"), (VERIFY, 1, "<&- >&- 2>&-"),
    ],
)  # fmt: skip
def test_the_exit_code_does_not_hang_on_a_reader(line: str, code: int, reader: str) -> None:
    pipe = '; echo " ${PIPESTATUS[0]}" >&9' if "|" in reader else "; echo $? >&9"
    done = shell(f"exec 9>&1\ngpuprov {line} {reader}{pipe}")
    assert done.stdout.split()[-1] == str(code)
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr


def test_an_answer_that_a_full_disk_swallowed_is_no_success() -> None:
    done = shell("gpuprov catalog > /dev/full")
    assert (done.returncode, done.stderr) == (2, "gpuprov: standard output: No space left on device\n")
    done = shell("gpuprov catalog --json > /dev/full")
    assert (done.returncode, done.stderr) == (2, "gpuprov: standard output: No space left on device\n")


def test_the_script_is_the_entry_that_can_be_interrupted() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"] == {"gpuprov": "provisioner.__main__:main"}


def interrupted(ready: Path, sign: signal.Signals, *argv: str, **env: str) -> tuple[int, str]:
    """Exit status and stderr of a process that got a signal when the file was there."""
    with subprocess.Popen(
        [sys.executable, *argv], cwd=ROOT, stderr=subprocess.PIPE, text=True, env=os.environ | env
    ) as process:
        while not ready.exists() and process.poll() is None:
            signal.sigtimedwait([], 0.02)
        process.send_signal(sign)
        _, err = process.communicate(timeout=30)
    return process.returncode, err


def test_an_interrupt_during_the_imports_leaves_no_traceback(tmp_path: Path) -> None:
    ready, slow = tmp_path / "ready", tmp_path / "slow"
    slow.mkdir()
    (slow / "typer.py").write_text(f"import pathlib, time\npathlib.Path({str(ready)!r}).touch()\ntime.sleep(60)\n")
    code, err = interrupted(ready, signal.SIGINT, "-m", "provisioner", "catalog", PYTHONPATH=str(slow))
    assert (code, err) == (-signal.SIGINT, "")


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_an_interruption(sign: signal.Signals, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        "import time, pathlib\nfrom provisioner.cli import main as m\nimport provisioner.__main__ as entry, sys\n"
        # Short sleeps: one that begins just after a signal came does not see it before its own end.
        f"def waits():\n    pathlib.Path({str(ready)!r}).touch()\n    while True:\n        time.sleep(0.1)\n"
        "m.try_it = waits\nm.COMMANDS['try'] = m.Entry('provisioner.cli.main:try_it', '')\n"
        "sys.argv = ['gpuprov', 'try']\nentry.main()\n"
    )
    assert interrupted(ready, sign, "-c", code) == (130, "gpuprov: interrupted\n")


@pytest.mark.parametrize("end", [": 403 AccessDenied(Message: no)", ", again", ") is gone", ").", ""])
def test_a_url_loses_its_query_and_not_what_stands_behind_it(end: str) -> None:
    url = "https://acme.oss-cn-shanghai.aliyuncs.com/"
    assert without_queries(f"GET {url}?prefix=a:b,c&sig=x{end}") == f"GET {url}{end}"
    assert without_queries(f"{url}?{end}") == f"{url}{end}"
