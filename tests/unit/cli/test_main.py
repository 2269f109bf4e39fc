"""The console entry: what is imported, what is printed where, with which exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from provisioner import __version__
from provisioner.cli import main as cli
from provisioner.cli.main import COMMANDS, Entry, load, run
from provisioner.common.errors import ConfigureError, GpuprovError, InputError, LockedError, Problem, ProviderError

ROOT = Path(__file__).parents[3]
HEAVY = ("pydantic", "yaml", "rich", "jinja2", "ansible", "ansible_runner", "testinfra", "pytest", "boto3", "rapidfuzz")


def gpuprov(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "provisioner", *map(str, arguments)],
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
        **options,  # type: ignore[call-overload]
    )


def imported_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"],
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=60,
        check=True,
    )
    return {name.partition(".")[0] for name in done.stderr.split()}


def test_help_imports_no_command() -> None:
    modules = imported_by("from provisioner.cli.main import run\nassert run(['--help']) == 0")
    assert "typer" in modules
    assert modules.isdisjoint(HEAVY)


def test_validate_imports_no_stage() -> None:
    code = "from provisioner.cli.main import run\nassert run(['validate', 'examples/aws-p4d.yaml']) == 0"
    modules = imported_by(code)
    assert "pydantic" in modules
    assert modules.isdisjoint({"ansible", "ansible_runner", "testinfra", "pytest", "boto3", "jinja2", "rich"})


def test_help_lists_every_command() -> None:
    done = gpuprov("--help")
    assert done.returncode == 0
    for name, entry in COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert entry.help.split(".")[0] in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_and_has_help(name: str) -> None:
    assert load(name, COMMANDS[name]) is not None
    assert run([name, "--help"]) == 0


def test_version() -> None:
    assert gpuprov("--version").stdout == f"gpuprov {__version__}\n"


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"], ["up"], ["init", "--machine"], []])
def test_wrong_usage_exits_2(arguments: list[str]) -> None:
    done = gpuprov(*arguments)
    assert done.returncode == 2
    assert "Usage: gpuprov" in done.stderr + done.stdout or "Error: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], list[str]]:
    """Puts a function in as the command `try`."""

    def put(function: Callable[[], None]) -> list[str]:
        monkeypatch.setattr(cli, "try_it", function, raising=False)
        monkeypatch.setitem(COMMANDS, "try", Entry("provisioner.cli.main:try_it", "for a test"))
        return ["try"]

    return put


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (GpuprovError("wrong", where="train-0", hint="do this"), 2),
        (InputError([Problem("c.yaml", 3, 5, "name", "bad", "good")]), 2),
        (ProviderError("no quota"), 3),
        (ConfigureError("apt broke"), 4),
        (LockedError("somebody is there"), 5),
        (KeyboardInterrupt(), 130),
        (typer.Exit(7), 7),
        (typer.Abort(), 130),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_become_exit_codes(
    error: BaseException, code: int, command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise error

    assert run(command(fails)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    if isinstance(error, GpuprovError):
        assert str(error) in err


def test_a_defect_says_so_and_keeps_the_traceback(
    command: Callable[..., list[str]],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def breaks() -> None:
        raise ZeroDivisionError("a defect")

    assert run(command(breaks)) == 1
    out, err = capsys.readouterr()
    (traceback_file,) = (tmp_path / "gpuprov").iterdir()
    assert out == ""
    assert str(traceback_file) in err
    assert "Traceback" not in err
    assert "ZeroDivisionError: a defect" in traceback_file.read_text()
    assert traceback_file.stat().st_mode & 0o777 == 0o600


def test_a_defect_with_nowhere_to_write_is_shown(
    command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/dev/null")

    def breaks() -> None:
        raise ZeroDivisionError("a defect")

    assert run(command(breaks)) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "provisioner", "catalog"],
        cwd=ROOT,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 0


def test_interrupt_exits_130(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        "import time, pathlib\nfrom provisioner.cli import main as m\n"
        f"def waits():\n    pathlib.Path({str(ready)!r}).touch()\n    time.sleep(60)\n"
        "m.try_it = waits\nm.COMMANDS['try'] = m.Entry('provisioner.cli.main:try_it', '')\nm.main(['try'])\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE) as process:
        while not ready.exists() and process.poll() is None:
            signal.sigtimedwait([], 0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_a_verbatim_command_takes_options_as_they_stand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def passes(arguments: list[str]) -> None:
        print(arguments)

    monkeypatch.setattr(cli, "try_it", passes, raising=False)
    monkeypatch.setitem(COMMANDS, "try", Entry("provisioner.cli.main:try_it", "for a test", verbatim=True))
    assert run(["try", "df", "-h", "--json", "x"]) == 0
    assert capsys.readouterr().out == "['df', '-h', '--json', 'x']\n"
    assert run(["try", "--", "ls", "--help", "x"]) == 0  # what stands behind -- is never ours
    assert capsys.readouterr().out == "['ls', '--help', 'x']\n"


def test_a_folder_that_may_not_be_written_is_no_defect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses() -> None:
        raise PermissionError(13, "Permission denied", "/somewhere/.gpuprov")

    monkeypatch.setattr(cli, "try_it", refuses, raising=False)
    monkeypatch.setitem(COMMANDS, "try", Entry("provisioner.cli.main:try_it", "for a test"))
    assert run(["try"]) == 2
    assert capsys.readouterr().err == "gpuprov: /somewhere/.gpuprov: Permission denied\n"


@pytest.mark.parametrize(
    ("command_name", "message"),
    [("statsu", "there is no command statsu: did you mean status"), ("frobnicate", "there is no command frobnicate\n")],
)
def test_a_mistyped_command_gets_the_nearest(
    command_name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command_name, "x.yaml"]) == 2
    assert message in capsys.readouterr().err + "\n"


def test_a_paste_is_judged_from_standard_input() -> None:
    line = "[1.0] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"

    def judged(text: bytes) -> subprocess.CompletedProcess[bytes]:
        argv = [sys.executable, "-m", "provisioner", "verify", "--bundle", "-"]
        return subprocess.run(argv, input=text, capture_output=True, timeout=120, check=False, cwd=ROOT)

    completed = judged(line.encode())
    assert completed.returncode == 1
    assert b"pasted  gpu.xid" in completed.stdout
    assert b"read as dmesg: pasted" in completed.stderr
    assert judged(b"").returncode == 2
    binary = judged(bytes(range(256)) * 20)
    assert (binary.returncode, b"not used: pasted: no text" in binary.stderr) == (1, True)
