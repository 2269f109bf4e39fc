"""The hour on a real machine: what it refuses, and that the fleet is removed whatever happens to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.sandbox_cluster import ROOT

SCRIPT = ROOT / "scripts" / "first_run.py"
FAKE = """\
#!/usr/bin/env python3
import json, os, pathlib, sys, time
here = pathlib.Path(os.environ["FAKE"])
words = sys.argv[1:]
with (here / "calls").open("a") as log:
    log.write(" ".join(words) + "\\n")
if words[0] == "cost" and (here / "costs").exists():
    print((here / "costs").read_text())
elif words[0] == "cost":
    sums = [{"hour": 1.2}] if not (here / "no-price").exists() else []
    group = {"machine": "g6.xlarge", "provider": (here / "provider").read_text()}
    print(json.dumps({"groups": [group], "totals": {"on_demand": {"sums": sums}}}))
elif words[0] == "up":
    (here / "fleet").touch()
    if (here / "hangs").exists():
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            (here / "interrupted").touch()
            sys.exit(130)
elif words[0] == "verify" and (here / "verified").exists():
    print((here / "verified").read_text())
elif words[0] == "verify":
    node = {"name": "one-0", "machine": "g6.xlarge", "ok": True, "checks": [{"id": "gpu.count", "status": "pass"}]}
    print(json.dumps({"nodes": [node]}))
elif words[0] == "collect":
    folder = pathlib.Path(words[words.index("--output") + 1])
    folder.mkdir()
    (folder / "nvidia-smi.xml").write_text("<x/>")
elif words[0] == "down":
    if (here / "slow").exists():
        (here / "removing").touch()
        time.sleep(60)
    if (here / "stuck").exists():
        (here / "stuck").unlink()
        sys.exit(3)
    (here / "fleet").unlink(missing_ok=True)
"""


class Hour:
    """A folder with a cluster.yaml, and a gpuprov that keeps what it is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "bin" / "gpuprov").write_text(FAKE)
        (folder / "bin" / "gpuprov").chmod(0o755)
        (folder / "provider").write_text("aws")
        (folder / "cluster.yaml").write_text("name: first-run\n")

    def environment(self) -> dict[str, str]:
        return {**os.environ, "FAKE": str(self.folder), "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), str(self.folder / "cluster.yaml"), *arguments], env=self.environment(),
            text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=120)
        return process.returncode, output

    @property
    def calls(self) -> list[str]:
        log = self.folder / "calls"
        return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []

    def wait_until_removed(self) -> None:
        """Wait until the switch has removed the fleet."""
        end = time.monotonic() + 120
        while (self.folder / "cluster.first-run" / "switch.json").exists():
            assert time.monotonic() < end, (self.folder / "cluster.first-run" / "first-run.log").read_text()
            time.sleep(0.05)
        assert not (self.folder / "fleet").exists()


@pytest.fixture
def hour(tmp_path: Path) -> Hour:
    return Hour(tmp_path)


def test_it_is_made_proven_kept_and_removed(hour: Hour) -> None:
    code, output = hour.run("--budget", "1", "--yes")
    assert code == 0, output
    assert hour.calls == ["validate", "cost", "lock", "plan", "up", "verify", "collect", "down", "gc"]
    assert "at most 50 minutes, at most 1.00" in output
    with tarfile.open(hour.folder / "cluster.first-run" / "evidence-g6.xlarge.tar.gz") as packed:
        assert sorted(packed.getnames()) == ["evidence.json", "node-0/nvidia-smi.xml"]
        stream = packed.extractfile("evidence.json")
        assert stream is not None
        evidence: dict[str, Any] = json.load(stream)
        assert {info.uid for info in packed.getmembers()} == {0}
    assert (evidence["machine"], evidence["simulated"], evidence["nodes"][0]["checks"]) == (
        "g6.xlarge",
        False,
        {"gpu.count": "pass"},
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--budget AMOUNT says what it may cost; an hour costs 1.20 at most"),
        (("--budget", "0.2"), "0.20 buys 10 minutes of 1.20 an hour"),
        (("--budget", "3", "--hours", "0.1"), "--hours 0.1 is 6 minutes; it takes 20"),
    ],
)
def test_without_a_budget_that_is_enough_nothing_is_asked_of_a_cloud(
    hour: Hour, arguments: tuple[str, ...], message: str
) -> None:
    code, output = hour.run(*arguments, "--yes")
    assert (code, message in output) == (2, True), output
    assert "lock" not in hour.calls


def test_a_price_that_nobody_knows_has_to_be_given(hour: Hour) -> None:
    (hour.folder / "no-price").touch()
    code, output = hour.run("--budget", "1", "--yes")
    assert (code, "--price AMOUNT" in output) == (2, True)


def test_a_machine_of_ones_own_costs_nothing_and_is_not_looked_for_in_a_cloud(hour: Hour) -> None:
    (hour.folder / "provider").write_text("baremetal")
    assert hour.run("--yes")[0] == 0
    assert hour.calls[-1] == "down"


def test_who_does_not_say_yes_gets_nothing(hour: Hour) -> None:
    code, output = hour.run("--budget", "1")
    assert (code, "nothing was made" in output, "up" in hour.calls) == (1, True, False), output


def test_the_fleet_is_removed_where_the_run_was_killed(hour: Hour) -> None:
    (hour.folder / "hangs").touch()
    process = hour.start("--sandbox", "--yes", "--hours", "0.001")
    while not (hour.folder / "fleet").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    hour.wait_until_removed()
    assert (hour.folder / "interrupted").exists(), "what ran was asked to end first"


def test_the_run_ends_at_its_deadline(hour: Hour) -> None:
    (hour.folder / "hangs").touch()
    code, output = hour.run("--sandbox", "--yes", "--hours", "0.001")
    assert code == 1, output
    hour.wait_until_removed()


def test_a_fleet_that_could_not_be_removed_is_the_switchs(hour: Hour) -> None:
    (hour.folder / "stuck").touch()
    process = hour.start("--sandbox", "--yes", "--hours", "0.002")
    output, _ = process.communicate(timeout=120)
    assert (process.returncode, "tries again at its deadline" in output) == (1, True)
    hour.wait_until_removed()


def test_a_run_that_has_not_ended_is_not_begun_again(hour: Hour) -> None:
    (hour.folder / "hangs").touch()
    first = hour.start("--sandbox", "--yes", "--hours", "0.01")
    while not (hour.folder / "fleet").exists():
        assert first.poll() is None
        time.sleep(0.02)
    previous_calls = list(hour.calls)
    code, output = hour.run("--sandbox", "--yes")
    assert (code, "a run before goes on" in output, hour.calls) == (2, True, previous_calls), output
    first.communicate(timeout=120)
    hour.wait_until_removed()


@pytest.mark.parametrize(
    "cut_off", ["{}", "", '{"switch": 1, "switch_began": "earlier", "down": ["gpuprov", "down", "FILE"]}']
)
def test_a_fleet_whose_run_and_switch_are_gone_is_removed_first(hour: Hour, cut_off: str) -> None:
    folder = hour.folder / "cluster.first-run"
    folder.mkdir()
    (folder / "switch.json").write_text(cut_off.replace("FILE", str(hour.folder / "cluster.yaml")))
    (hour.folder / "stuck").touch()
    code, output = hour.run("--budget", "1", "--yes")
    assert (code, hour.calls, (folder / "switch.json").exists()) == (2, ["down"], True), output
    code, output = hour.run("--budget", "1", "--yes")
    assert code == 0, output
    assert hour.calls == ["down", "down", "validate", "cost", "lock", "plan", "up", "verify", "collect", "down", "gc"]


def test_a_real_run_says_so_to_each_command(hour: Hour) -> None:
    """Without it they go on with the sandbox where a sandbox run was left behind."""
    _, output = hour.run("--budget", "1", "--yes")
    commands = [line for line in output.splitlines() if line.startswith("$ gpuprov")]
    without = {line.split()[2] for line in commands if "--no-sandbox" not in line}
    assert without == {"validate", "cost", "gc"}, output
    assert "--sandbox" not in output


def test_a_run_in_the_background_ends_at_its_deadline(hour: Hour) -> None:
    """A shell without job control ignores Ctrl-C for it, and what it starts would inherit that."""
    (hour.folder / "hangs").touch()
    ignored = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
    )
    command = [sys.executable, "-c", ignored, sys.executable, str(SCRIPT), str(hour.folder / "cluster.yaml")]
    code = subprocess.run(
        [*command, "--sandbox", "--yes", "--hours", "0.001"], env=hour.environment(), check=False
    ).returncode
    assert code == 1
    assert (hour.folder / "interrupted").exists()


@pytest.mark.parametrize("flag", ["--budget", "--price", "--hours"])
@pytest.mark.parametrize("amount", ["nan", "inf", "0", "-1", "1,5"])
def test_an_amount_that_is_none_is_refused(hour: Hour, flag: str, amount: str) -> None:
    code, output = hour.run("--budget", "3", flag, amount, "--yes")
    assert (code, hour.calls) == (2, []), output


@pytest.mark.parametrize(
    "cost",
    [
        "[]",
        "{}",
        '{"groups": [], "totals": {"on_demand": {"sums": []}}}',
        '{"groups": [{"machine": "m", "provider": "aws"}], "totals": {"on_demand": {"sums": [{"hour": "abc"}]}}}',
        '{"groups": [{"machine": "m", "provider": "aws"}], "totals": {"on_demand": {"sums": [{"hour": null}]}}}',
        '{"groups": [{"machine": "m", "provider": "aws"}], "totals": {"on_demand": {"sums": [{"hour": 0}]}}}',
        '{"groups": [{"machine": "m", "provider": "aws"}], "totals": {"on_demand": null}}',
    ],
)
def test_a_price_that_cannot_be_read_is_said(hour: Hour, cost: str) -> None:
    (hour.folder / "costs").write_text(cost)
    code, output = hour.run("--budget", "1", "--yes")
    assert (code, "--price AMOUNT" in output, "Traceback" in output) == (2, True, False), output
    assert "lock" not in hour.calls


@pytest.mark.parametrize("verified", ["[]", "{}", '{"nodes": null}', '{"nodes": [{"name": "a"}]}', ""])
def test_the_fleet_is_removed_whatever_a_command_answers(hour: Hour, verified: str) -> None:
    (hour.folder / "verified").write_text(verified)
    code, output = hour.run("--budget", "1", "--yes")
    assert (code, "Traceback" in output, "down" in hour.calls) == (1, False, True), output
    hour.wait_until_removed()


def test_a_second_run_in_the_same_folder_has_its_own_evidence(hour: Hour) -> None:
    assert hour.run("--budget", "1", "--yes")[0] == 0
    code, output = hour.run("--budget", "1", "--yes")
    assert code == 0, output


@pytest.mark.parametrize("folder_name", ["absent/folder", "cluster.yaml", "/proc/self"])
def test_without_a_place_for_the_switch_nothing_is_made(hour: Hour, folder_name: str) -> None:
    code, output = hour.run("--budget", "1", "--yes", "--folder", str(hour.folder / folder_name))
    assert (code, "--folder" in output, "Traceback" in output, hour.calls) == (2, True, False, []), output


def test_nobody_to_answer_is_a_no(hour: Hour) -> None:
    code, output = hour.run("--budget", "1")
    assert (code, "Traceback" in output) == (1, False), output


def interrupted(hour: Hour, mark: str) -> tuple[int, str]:
    """The run with Ctrl-C (to all of its processes) once a file is there."""
    environment = {**os.environ, "FAKE": str(hour.folder), "PATH": f"{hour.folder}/bin:{os.environ['PATH']}"}
    argv = [sys.executable, str(SCRIPT), str(hour.folder / "cluster.yaml"), "--sandbox", "--yes", "--hours", "0.004"]
    process = subprocess.Popen(
        argv, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    while not (hour.folder / mark).exists():
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(0.3)
    (hour.folder / "slow").unlink(missing_ok=True)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


def test_one_who_interrupts_it_gets_the_fleet_removed_and_no_more(hour: Hour) -> None:
    (hour.folder / "hangs").touch()
    code, output = interrupted(hour, "fleet")
    assert (code, "verify" in hour.calls, hour.calls[-1]) == (1, False, "down"), output
    assert not (hour.folder / "fleet").exists()


def test_a_removal_that_was_interrupted_is_the_switchs(hour: Hour) -> None:
    (hour.folder / "slow").touch()
    code, output = interrupted(hour, "removing")
    assert (code, "tries again at its deadline" in output) == (1, True), output
    hour.wait_until_removed()


def switched(hour: Hour, **state: Any) -> None:
    """The switch alone, to its end."""
    folder = hour.folder / "cluster.first-run"
    folder.mkdir()
    (hour.folder / "fleet").touch()
    down = [str(hour.folder / "bin" / "gpuprov"), "down", "cluster.yaml"]
    switch_state = {"at": time.time() + 1, "seconds": 1.0, "down": down, "child": None, **state}
    (folder / "switch.json").write_text(json.dumps(switch_state))
    argv = [sys.executable, str(SCRIPT), "--switch", str(folder / "switch.json")]
    subprocess.run(argv, env={**os.environ, "FAKE": str(hour.folder)}, check=True, timeout=60)
    assert not (hour.folder / "fleet").exists()


def test_a_clock_that_was_set_back_moves_no_deadline(hour: Hour) -> None:
    switched(hour, at=time.time() + 3600)


def test_a_pid_that_another_process_has_now_is_left_alone(hour: Hour) -> None:
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        switched(hour, child=stranger.pid, began="Mon Jan  1 00:00:00 2024")
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_the_switch_needs_no_folder(hour: Hour) -> None:
    (hour.folder / "hangs").touch()
    process = hour.start("--sandbox", "--yes", "--hours", "0.002")
    while not (hour.folder / "fleet").exists():
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(1.5)
    (hour.folder / "cluster.first-run" / "switch.json").unlink()
    process.send_signal(signal.SIGKILL)
    process.wait()
    end = time.monotonic() + 60
    while (hour.folder / "fleet").exists():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_of_two_runs_at_once_one_is_refused(hour: Hour) -> None:
    (hour.folder / "hangs").touch()
    runs = [hour.start("--sandbox", "--yes", "--hours", "0.002") for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in runs]
    assert sum("is there: a" in output for output in outputs) == 1, outputs
    assert hour.calls.count("up") == 1
    hour.wait_until_removed()
