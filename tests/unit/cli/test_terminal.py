"""What a person sees at a terminal: questions and their answers, rows while a run is at work, whatever the window.

The command line is the real one; the lifecycles behind it are those of tests/support/scripted.py, which make nothing.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.sandbox_cluster import ROOT
from tests.support.terminal import CTRL_C, CTRL_D, Terminal, gpuprov

pytestmark = pytest.mark.heavy

QUESTION = "[y/N]:"
COLOUR = re.compile(rb"\x1b\[(?:\d+;)*[34]\d(?:;\d+)*m")
START = Callable[..., Terminal]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the demo's cluster.yaml, as after a first `up`."""
    (tmp_path / "cluster.yaml").write_text((ROOT / "examples" / "aws-p4d.yaml").read_text())
    (tmp_path / ".gpuprov" / "vision.sandbox").mkdir(parents=True)
    (tmp_path / "gates").mkdir()
    return tmp_path


@pytest.fixture
def start(folder: Path) -> START:
    """Starts a scripted command at a terminal; `gates` are open from the beginning."""

    def at(
        *arguments: str, gates: str = "asked", env: dict[str, str | None] | None = None, imported: bool = True,
        **size: int,
    ) -> Terminal:  # fmt: skip
        for gate in gates.split():
            (folder / "gates" / gate).touch()
        argv = [sys.executable, "-m", "tests.support.scripted", *arguments]
        env = {"GPUPROV_TEST_GATES": str(folder / "gates"), **(env or {})}
        return Terminal(argv, cwd=folder, env=env, imported=imported, **size)

    return at


def open_gate(folder: Path, *names: str) -> None:
    for name in names:
        (folder / "gates" / name).touch()


def ended(folder: Path, name: str) -> str | None:
    """How a part of the script ended; None where it never began."""
    file = folder / "gates" / f"{name}.done"
    return file.read_text() if file.exists() else None


UP = ("up", "cluster.yaml", "--sandbox")
ALL = "asked ssh roles configured"
ASKING = {
    "up": (UP, "Create 4 p4d.24xlarge in the sandbox (9 resources)?", "nothing was created", 0),
    "down": (
        ("down", "cluster.yaml"),
        "Remove train-0, train-1, train-2, train-3 of vision (sandbox)?",
        "nothing was removed",
        0,
    ),
    "replace": (
        ("replace", "cluster.yaml", "train-2"),
        "Destroy train-2 of vision (sandbox) and create a new machine (9 resources)?",
        "nothing was destroyed",
        0,
    ),
    "upgrade": (
        ("upgrade", "cluster.yaml"),
        "Upgrade 4 nodes of vision (sandbox), first train-0, then 2 at once?",
        "no node was moved",
        0,
    ),
    "gc": (
        ("gc", "--region", "us-east-1", "--provider", "aws", "--cluster", "vision"),
        "Remove these 1 resource of vision? Somebody else may be using them.",
        "nothing was removed",
        0,
    ),
}


@pytest.mark.parametrize("command", ASKING)
def test_yes_goes_on_to_the_end(command: str, folder: Path, start: START) -> None:
    arguments, question, _, _ = ASKING[command]
    with start(*arguments, gates=ALL) as terminal:
        terminal.wait_for(question, QUESTION)
        terminal.type("y\r")
        assert terminal.end() == 0
        assert "internal error" not in terminal.text
    assert ended(folder, "work") == "done"


@pytest.mark.parametrize(
    ("command", "keys"),
    [(command, "n\r") for command in ASKING] + [("up", keys) for keys in ("\r", "what?\rn\r", CTRL_D, "ü\rn\r")],
)
def test_no_nothing_and_the_end_of_input_are_a_no(command: str, keys: str, folder: Path, start: START) -> None:
    arguments, question, declined, status = ASKING[command]
    with start(*arguments) as terminal:
        terminal.wait_for(question, QUESTION)
        terminal.type(keys)
        assert terminal.end() == status
        if command != "upgrade":
            assert declined in terminal.screen
        asked_again = terminal.screen.count(QUESTION) == 2
    assert asked_again == (keys.count("\r") == 2)
    assert ended(folder, "work") is None


@pytest.mark.parametrize("command", ["up", "replace"])
def test_ctrl_c_at_the_question_makes_nothing(command: str, folder: Path, start: START) -> None:
    arguments, question, declined, _ = ASKING[command]
    with start(*arguments) as terminal:
        terminal.wait_for(question, QUESTION)
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        assert terminal.screen.splitlines()[-1] == f"gpuprov: interrupted: {declined}"
    assert ended(folder, "work") is None


def test_what_is_typed_before_the_question_is_no_answer_to_it(folder: Path, start: START) -> None:
    with start(*UP, gates="") as terminal:
        terminal.wait_for("stack")
        terminal.type("y\r")
        open_gate(folder, "asked")
        terminal.wait_for(QUESTION)
        terminal.type("n\r")
        assert terminal.end() == 0
        assert "nothing was created" in terminal.screen
    assert ended(folder, "work") is None


@pytest.mark.parametrize("stream", ["</dev/null", "2>/dev/null", "</dev/null 2>/dev/null"])
def test_without_a_terminal_to_ask_at_nothing_is_begun(stream: str, folder: Path, start: START) -> None:
    with start(*UP) as terminal:
        terminal.type(CTRL_C)
    env = {"GPUPROV_TEST_GATES": str(folder / "gates"), "PYTHONPATH": str(ROOT)}
    with Terminal(["bash", "-c", f"{sys.executable} -m tests.support.scripted {' '.join(UP)} {stream}; echo =$?"],
                  cwd=folder, env=env) as terminal:  # fmt: skip
        assert terminal.end() == 0
        assert "=2" in terminal.screen
        if "2>" not in stream:
            assert "confirmation required, but stdin is not a terminal" in terminal.screen
            assert "pass --yes" in terminal.screen
    assert ended(folder, "work") is None


def test_rows_survive_the_question_and_stages_that_begin_again(folder: Path, start: START) -> None:
    with start(*UP, columns=140) as terminal:
        screen_at_question = terminal.wait_for(QUESTION)
        assert re.search(r"✓ stack +.*locked: driver 580.95.05", screen_at_question)
        terminal.type("y\r")
        terminal.wait_for("3 of 4 nodes; waiting for train-3")
        open_gate(folder, "ssh")
        terminal.wait_for("0 of 4 nodes done; slowest train-0", "in nvidia_driver : Install the driver")
        open_gate(folder, "roles")
        screen = terminal.wait_for("✓   train-3", "4 of 4 nodes done")
        assert len(re.findall(r"^✓   train-\d .*configured", screen, re.M)) == 4
        open_gate(folder, "configured")
        assert terminal.end() == 0
        last = terminal.screen
    assert len(re.findall(r"^✓ terraform +.*ohio: 5 resources", last, re.M)) == 1
    assert re.search(r"^✓ configure .*4 nodes configured", last, re.M)
    assert re.search(r"^✓ verify .*4 of 4 nodes healthy", last, re.M)
    assert "verify: train-0: thermal: 84 C" in last
    assert "train-1  p4d.24xlarge  healthy" in last
    assert b"\x1b[?25h" in terminal.raw.rpartition(b"\x1b[?25l")[2], "the cursor is to be seen again"


@pytest.mark.parametrize("gate", ["ssh", "roles"])
def test_ctrl_c_while_at_work(gate: str, folder: Path, start: START) -> None:
    with start(*UP, "--yes", gates=ALL.partition(gate)[0]) as terminal:
        terminal.wait_for({"ssh": "waiting for train-3", "roles": "slowest"}[gate])
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        assert re.search(rf"^✗ {'fleet' if gate == 'ssh' else 'configure'} ", terminal.screen, re.M)
        assert "interrupted; progress is saved\n  resume with `gpuprov up cluster.yaml --sandbox`" in terminal.screen
    assert ended(folder, "work") == "KeyboardInterrupt"


@pytest.mark.parametrize("when", ["question", "work"])
def test_a_closed_terminal_ends_the_run_in_order(when: str, folder: Path, start: START) -> None:
    with start(*UP, *(["--yes"] if when == "work" else [])) as terminal:
        terminal.wait_for(QUESTION if when == "question" else "waiting for train-3")
        terminal.hang_up()
        assert terminal.gone()
    assert ended(folder, "work") == ("KeyboardInterrupt" if when == "work" else None)


@pytest.mark.parametrize(("columns", "lines"), [(40, 24), (80, 10), (250, 60)])
def test_every_row_has_one_line_however_wide_the_window(columns: int, lines: int, folder: Path, start: START) -> None:
    with start(*UP, "--yes", gates="asked ssh", columns=columns, lines=lines) as terminal:
        screen = terminal.wait_for("0 of 4")
        rows = [line for line in screen.splitlines() if re.match(r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏✓✗] ", line)]
        assert rows == screen.splitlines()[-len(rows) :], "nothing but rows at the end of the screen"
        assert [line for line in rows if " configure" in line]
        open_gate(folder, "roles", "configured")
        assert terminal.end() == 0
        assert len(re.findall(r"^✓ configure", terminal.text, re.M)) == 1


def test_a_window_that_changes_its_size(folder: Path, start: START) -> None:
    with start(*UP, "--yes", columns=120, lines=40) as terminal:
        terminal.wait_for("waiting for train-3")
        terminal.resize(48, 20)
        open_gate(folder, "ssh")
        terminal.wait_for("configure", "train-3")
        terminal.resize(200, 50)
        open_gate(folder, "roles")
        terminal.wait_for("✓   train-3")
        open_gate(folder, "configured")
        assert terminal.end() == 0
        last = terminal.screen
    for stage in ("stack", "terraform", "fleet", "configure", "verify"):
        assert re.search(rf"^✓ {stage} ", last, re.M)


def test_300_nodes_leave_two_thirds_of_the_screen(folder: Path, start: START) -> None:
    env = {"GPUPROV_TEST_NODES": "300", "GPUPROV_TEST_FAILING": "train-7 train-250"}
    with start(*UP, "--yes", gates="asked ssh", env=env, lines=45) as terminal:

        def lines_of_nodes(screen: str) -> list[str]:
            return [line for line in screen.splitlines() if re.match(r"\S   \S", line)]

        def is_drawn(screen: str) -> bool:
            nodes = lines_of_nodes(screen)
            failed = [line.split()[1] for line in nodes if line.startswith("✗")]
            return len(nodes) <= 15 and failed == ["train-7", "train-250"] and "slowest" in screen and "more" in screen

        screen = terminal.wait_until(is_drawn, "both failed nodes among at most 15 lines")
        nodes = lines_of_nodes(screen)
        assert "no space left on device" in nodes[0]
        assert re.search(r"28\d more .* 28\d at work", nodes[-1])
        assert (
            "configure: train-250: nvidia_driver : Install the driver at the locked versions: no space left" in screen
        )
        open_gate(folder, "roles", "configured")
        terminal.end()
        assert "✗   train-250" in terminal.text, "a failed node keeps its line"


def test_a_dumb_terminal_gets_lines(start: START) -> None:
    with start(*UP, gates=ALL, env={"TERM": "dumb"}) as terminal:
        terminal.wait_for(QUESTION)
        terminal.type("y\r")
        assert terminal.end() == 0
        assert b"\x1b" not in terminal.raw
        assert "configure: running the roles on 4 nodes" in terminal.text


def test_no_color_has_no_colour(start: START) -> None:
    with start(*UP, "--yes", gates=ALL, env={"NO_COLOR": "1"}) as terminal:
        assert terminal.end() == 0
        assert not COLOUR.search(terminal.raw)
    with start(*UP, "--yes", gates=ALL) as terminal:
        assert terminal.end() == 0
        assert COLOUR.search(terminal.raw)


@pytest.mark.parametrize("encoding", ["ascii", "gb18030"])
def test_an_encoding_without_our_marks(encoding: str, start: START) -> None:
    env = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": encoding}
    with start(*UP, gates=ALL, env=env, imported=False) as terminal:
        terminal.wait_for(QUESTION)
        terminal.type("y\r")
        assert terminal.end() == 0
        assert "\\u" not in terminal.text
        assert "\\x" not in terminal.text
        assert re.search(r"^\+ configure .*4 nodes configured", terminal.screen, re.M)


def test_help_and_errors_of_every_command_at_a_narrow_terminal(folder: Path) -> None:
    for command in ("unlock", "quarantine train-9 --reason fan", "ssh train-0", "exec true", "verify", "status"):
        name, *options = command.split()
        arguments = [name, "cluster.yaml", *options]
        with Terminal(gpuprov(*arguments), cwd=folder, columns=40, imported=True) as terminal:
            terminal.end()
            assert "internal error" not in terminal.text, terminal.text
            assert "Traceback" not in terminal.text


def events_file(folder: Path) -> Path:
    run = folder / ".gpuprov" / "vision.sandbox" / "runs" / "20260101T000000"
    run.mkdir(parents=True)
    (folder / ".gpuprov" / "vision.sandbox" / "holder.json").write_text(
        json.dumps({"pid": os.getpid(), "command": "up", "since": time.time()})
    )
    return run / "events.jsonl"


def say(file: Path, stage: str, kind: str, message: str, **fields: object) -> None:
    with file.open("a") as stream:
        stream.write(
            json.dumps({"stage": stage, "kind": kind, "message": message, "time": time.time(), **fields}) + "\n"
        )


def test_status_watch_shows_the_run_of_another_process_until_ctrl_c(folder: Path) -> None:
    file = events_file(folder)
    say(file, "terraform", "done", "virginia: 5 resources")
    with Terminal(gpuprov("status", "cluster.yaml", "--watch"), cwd=folder, lines=40, imported=True) as terminal:
        terminal.wait_for(f"gpuprov up, process {os.getpid()}", "✓ terraform", "train-3", "4 nodes: 4 planned")
        say(file, "configure", "started", "running the roles on 4 nodes", total=4)
        say(file, "configure", "progress", "efa : Install EFA", node="train-1", done=3, total=65, unit="task")
        terminal.wait_for("slowest train-1", "efa : Install EFA")
        say(file, "configure", "warning", "stopping Ansible", data={"here": "press Ctrl-C again to kill it now"})
        say(file, "verify", "warning", "not healthy: gpu.count", node="train-2")
        terminal.wait_for("verify: train-2: not healthy: gpu.count")
        assert "Ctrl-C again" not in terminal.text
        say(file, "run", "log", "gpuprov up: interrupted", data={"ended": "interrupted"})
        (folder / ".gpuprov" / "vision.sandbox" / "holder.json").unlink()
        terminal.wait_for("no run in progress", "✗ configure")
        terminal.type(CTRL_C)
        assert terminal.end() == 0


def test_status_watch_in_a_pipe_ends_with_the_run(folder: Path) -> None:
    file = events_file(folder)
    say(file, "terraform", "done", "virginia: 5 resources")
    script = f"{sys.executable} -m provisioner status cluster.yaml --watch | cat"
    with Terminal(["bash", "-c", script], cwd=folder) as terminal:
        terminal.wait_for("terraform: virginia: 5 resources")
        (folder / ".gpuprov" / "vision.sandbox" / "holder.json").unlink()
        assert terminal.end() == 0
        assert "\x1b" not in terminal.raw.decode()
        assert "train-3  p4d.24xlarge" in terminal.text
