#!/usr/bin/env python3
"""One hour on a real machine: made, proven, its evidence kept, removed again, whatever happens meanwhile.

    python scripts/first_run.py examples/first-run/aws.yaml --budget 3

docs/start/first-real-run.md says what each example costs and proves. Every command is printed before it runs, so that
all of it can be typed by hand. Before machines are made a second process starts, in a session of its own: at the
deadline, which follows from the budget, it interrupts what runs and removes the fleet, also where this terminal is gone
by then.
Standard library only; needs `gpuprov` in PATH.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

LEAST_MIN = 20.0
"""Minutes below which nothing is proven: machines come up, a driver is built, images of some GiB are pulled."""
TRIES, PAUSE_S = 30, 60.0
"""How often the switch asks for the fleet's removal, and what it waits between."""
DOWN_S = 3600
"""Seconds that one removal may take before the switch ends it and asks again."""
LOG = "first-run.log"


def say(text: str, *, error: bool = False) -> None:
    """Where nobody reads any more (a terminal that is gone, a pipe that is closed) the run goes on."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr if error else sys.stdout, flush=True)


class Run:
    """One fleet's hour. `folder` keeps its log, its switch and its evidence."""

    def __init__(self, file: Path, *, sandbox: bool, folder: Path) -> None:
        self.file, self.folder = file, folder
        self.flags = ["--sandbox" if sandbox else "--no-sandbox"]
        self.sandbox = sandbox

    def gpuprov(self, command: str, *arguments: str, ask: bool = True, sandbox: bool = True) -> list[str]:
        flags = [*(self.flags if sandbox else ()), *(() if ask else ("--yes",))]
        return ["gpuprov", command, str(self.file), *arguments, *flags]

    def call(self, argv: list[str], *, may_fail: bool = False) -> int:
        """Run it in the foreground, so that Ctrl-C reaches it. Raises KeyboardInterrupt once it has ended by that."""
        code, _ = self._run(argv, None)
        if code and not may_fail:
            raise SystemExit(f"`{shlex.join(argv[:2])}` ended with {code}")
        return code

    def answer(self, argv: list[str]) -> Any:
        code, output = self._run(argv, subprocess.PIPE)
        try:
            return json.loads(output)
        except ValueError:
            raise SystemExit(f"`{shlex.join(argv[:2])}` ended with {code} and gave no document") from None

    def _run(self, argv: list[str], stdout: int | None) -> tuple[int, str]:
        """Exit status and output; while it runs the switch knows it."""
        say(f"$ {shlex.join(argv)}")
        try:
            process = subprocess.Popen(argv, stdout=stdout, text=True)
        except OSError as error:
            raise SystemExit(f"`{shlex.join(argv[:2])}` could not be started: {error}") from None
        self.note(child=process.pid, began=_began(process.pid))
        try:
            output, _ = process.communicate()
        except KeyboardInterrupt:
            process.communicate()
            raise
        finally:
            self.note(child=None)
        return process.returncode, output or ""

    @property
    def switch(self) -> Path:
        return self.folder / "switch.json"

    def note(self, **changes: Any) -> None:
        """What the switch has to know, written whole. What cannot be written is no reason to end: the switch acts at
        its deadline all the same."""
        with contextlib.suppress(OSError, ValueError):
            state = json.loads(self.switch.read_text()) | changes
            new_file = self.switch.with_suffix(".new")
            new_file.write_text(json.dumps(state))
            new_file.replace(self.switch)


def start_switch(run: Run, seconds: float) -> subprocess.Popen[bytes]:
    """The process that removes the fleet when the time is over. Raises SystemExit where it cannot be started."""
    state = {"at": time.time() + seconds, "seconds": seconds, "down": run.gpuprov("down", ask=False), "child": None}
    try:
        with run.switch.open("x") as file:
            json.dump(state, file)
    except FileExistsError:
        raise SystemExit(f"{run.switch} is there: another run began meanwhile") from None
    except OSError as error:
        raise SystemExit(f"the switch could not be started: {error}") from None
    with (run.folder / LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--switch", str(run.switch)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    run.note(switch=process.pid, switch_began=_began(process.pid))
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.3)
        run.switch.unlink(missing_ok=True)
        raise SystemExit(f"the switch ended at once: see {run.folder / LOG}")
    return process


def finish(run: Run) -> None:
    """Remove what a run before has left whose switch is gone, as after a restart of this computer. Raises SystemExit
    where that run goes on, or its fleet is not removed."""
    pid, began, removal = 0, "", run.gpuprov("down", ask=False)
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        state = json.loads(run.switch.read_text())
        removal = [str(argument) for argument in state["down"]]
        pid, began = state["switch"], state["switch_began"]
    if began and _began(pid) == began:
        say(f"first_run: a run before goes on (process {pid} is its switch); see {run.folder / LOG}", error=True)
        raise SystemExit(2)
    say(f"\n== a run before was cut off, and its switch with it ({run.switch}): its fleet is removed first")
    if run.call(removal, may_fail=True):
        say("first_run: its fleet is not removed; nothing new was made", error=True)
        raise SystemExit(2)
    run.switch.unlink(missing_ok=True)


def switch(file: Path) -> int:
    """Wait for the deadline, then remove the fleet, and try again until it is gone; a run that has removed it ends this
    process. The deadline is over when the clock says so (a computer that slept acts when it wakes) or when as much
    time has passed (a clock that was set back)."""
    state = json.loads(file.read_text())
    end = time.monotonic() + state["seconds"]
    while (remaining_s := min(state["at"] - time.time(), end - time.monotonic())) > 0:
        time.sleep(min(1.0, remaining_s))
        with contextlib.suppress(OSError, ValueError):  # without its file it still knows what to remove
            state |= json.loads(file.read_text())
    say(f"{time.ctime()}: the time is over: the fleet is removed")
    if child := state["child"]:
        for kind, patience in ((signal.SIGINT, 120), (signal.SIGTERM, 30), (signal.SIGKILL, 5)):
            if _ended(child, state.get("began"), kind, patience):
                break
    for number in range(TRIES):
        try:
            code = subprocess.run(state["down"], check=False, timeout=DOWN_S).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            say(str(error))
            code = -1
        say(f"`gpuprov down` ended with {code}")
        if code == 0:
            file.unlink(missing_ok=True)
            return 0
        if number + 1 < TRIES:
            time.sleep(PAUSE_S)
    say("THE FLEET IS STILL THERE: remove it by hand (`gpuprov docs first-real-run`)")
    return 1


def _began(pid: int) -> str:
    """When a process began, "" where there is none: a pid is given to another one later."""
    with contextlib.suppress(OSError, LookupError):  # ps counts from the clock, which may be corrected meanwhile
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] == "Z" else fields[19]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        argv = ["ps", "-o", "lstart=", "-p", str(pid)]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=10).stdout.strip()
    return ""


def _ended(pid: int, began: str | None, kind: signal.Signals, patience: int) -> bool:
    """Whether the process has ended within so many seconds after that signal."""
    if began and _began(pid) != began:
        return True
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, kind)
        for _ in range(patience * 10):
            os.kill(pid, 0)
            time.sleep(0.1)
        return False
    return True


def evidence(run: Run, machine: str) -> Path:
    """Redacted bundles of all nodes and the verdicts, in one archive."""
    report = run.answer(run.gpuprov("verify", "--level", "standard", "--json"))
    folder = run.folder / "evidence"
    shutil.rmtree(folder, ignore_errors=True)  # of a run before
    folder.mkdir()
    verdicts = []
    for number, node in enumerate(report["nodes"]):
        run.call(run.gpuprov("collect", node["name"], "--output", str(folder / f"node-{number}"), "--redact"))
        checks = {check["id"]: check["status"] for check in node["checks"]}
        verdicts.append({"machine": node.get("machine") or machine, "ok": node["ok"], "checks": checks})
    head = {
        "schema": 1,
        "machine": machine,
        "simulated": run.sandbox,
        "date": time.strftime("%Y-%m-%d"),
        "nodes": verdicts,
    }
    (folder / "evidence.json").write_text(json.dumps(head, indent=1) + "\n")
    archive = run.folder / f"evidence-{re.sub(r'[^A-Za-z0-9._-]', '-', machine)}.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                info = tarfile.TarInfo(str(path.relative_to(folder)))  # nobody's uid, no time
                info.size = path.stat().st_size
                with path.open("rb") as stream:
                    packed.addfile(info, stream)
    return archive


def amount(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="a cluster.yaml; examples/first-run has some")
    parser.add_argument(
        "--budget", type=amount, help="what it may cost, in the currency of `gpuprov cost`; needed in a cloud"
    )
    parser.add_argument("--hours", type=amount, default=1.0, help="how long it may take at most (default: 1)")
    parser.add_argument("--price", type=amount, help="what an hour costs, where `gpuprov cost` does not know")
    parser.add_argument("--folder", type=Path, help="where log and evidence are kept (default: beside the file)")
    parser.add_argument("--sandbox", action="store_true", help="run it in the sandbox: nothing real is proven")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--switch", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.switch:
        return switch(options.switch)
    if options.file is None or not options.file.is_file():
        parser.error(f"{options.file or 'FILE'}: no such file")
    if not shutil.which("gpuprov"):
        parser.error("there is no gpuprov in PATH: in its checkout `pip install .`, or `source .venv/bin/activate`")
    run = Run(
        options.file,
        sandbox=options.sandbox,
        folder=options.folder or options.file.parent / f"{options.file.stem}.first-run",
    )
    try:
        run.folder.mkdir(exist_ok=True)
        with (run.folder / LOG).open("ab"):
            pass
    except OSError as error:
        parser.error(f"{run.folder}: {error.strerror}; --folder names another place for the log and the switch")
    # A shell without job control starts what is in its background with Ctrl-C ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if run.switch.exists():
            finish(run)
        fleet_terms = confirm_terms(parser, options, run)
    except KeyboardInterrupt:
        say("\nfirst_run: interrupted; nothing was made", error=True)
        return 130
    if fleet_terms is None:
        say("first_run: nothing was made", error=True)
        return 1
    return hour_of(run, *fleet_terms)


def confirm_terms(
    parser: argparse.ArgumentParser, options: argparse.Namespace, run: Run
) -> tuple[str, float, bool] | None:
    """What is read of the file and asked of its owner before anything is made: machine, minutes, whether it is a
    cloud's; None where the answer is no."""
    say("\n== the file, and what it may cost")
    run.call(run.gpuprov("validate", sandbox=False))
    cost = run.answer(["gpuprov", "cost", str(run.file), "--json", *(["--offline"] if options.sandbox else [])])
    try:
        machine = str(cost["groups"][0]["machine"])
        owned = all(group["provider"] == "baremetal" for group in cost["groups"])
        sums = cost["totals"]["on_demand"]["sums"]  # on demand is the most: spot does not exceed it
        hour = options.price or (amount(sums[0]["hour"]) if len(sums) == 1 else None)
    except (LookupError, TypeError, ValueError):
        if options.price is None:
            parser.error("`gpuprov cost` gave no price that can be read: --price AMOUNT says what an hour costs")
        raise SystemExit("`gpuprov cost` gave no document of a fleet") from None
    minutes = options.hours * 60
    if not owned and not options.sandbox:
        if hour is None:
            parser.error(
                "what an hour costs is not known: --price AMOUNT says so, and --budget AMOUNT what it may cost"
            )
        if options.budget is None:
            parser.error(f"--budget AMOUNT says what it may cost; an hour costs {hour:.2f} at most")
        if minutes < LEAST_MIN:
            parser.error(f"--hours {options.hours:g} is {minutes:.0f} minutes; it takes {LEAST_MIN:.0f}")
        minutes = min(minutes, options.budget / hour * 60)
        if minutes < LEAST_MIN:
            parser.error(
                f"{options.budget:.2f} buys {minutes:.0f} minutes of {hour:.2f} an hour; it takes {LEAST_MIN:.0f}"
            )
    say("\n== what would keep it from working")
    run.call(run.gpuprov("lock"))
    run.call(run.gpuprov("plan"))
    bound = f", at most {hour * minutes / 60:.2f}" if hour and not options.sandbox else ""
    say(f"\nat most {minutes:.0f} minutes{bound}; then everything is removed, by a process that outlives this terminal")
    with contextlib.suppress(EOFError):
        if options.yes or input("go on? [y/N] ").strip().lower() in ("y", "yes"):
            return machine, minutes, not owned and not options.sandbox
    return None


def hour_of(run: Run, machine: str, minutes: float, clouds: bool) -> int:
    """From the switch to the removal. Gives the exit status."""
    end = time.monotonic() + minutes * 60
    try:
        ahead = start_switch(run, minutes * 60)
    except KeyboardInterrupt:
        say("first_run: interrupted; nothing was made", error=True)
        return 130
    failed, healthy, archive = "", False, run.folder
    try:
        say(f"the switch is process {ahead.pid}; its log is {run.folder / LOG}")
        say("\n== machines are made, configured and proven")
        healthy = run.call(run.gpuprov("up", ask=False), may_fail=True) == 0
        if time.monotonic() >= end:
            raise SystemExit("the time is over")
        say("\n== evidence")
        archive = evidence(run, machine)
        say(f"\n{machine} is {'proven healthy' if healthy else 'NOT healthy: look at the report above'}")
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # whatever it is, the fleet is removed
        failed = str(error) or ("interrupted" if isinstance(error, KeyboardInterrupt) else repr(error))
        say(f"first_run: {failed}", error=True)
    try:
        say("\n== everything is removed")
        code = run.call(run.gpuprov("down", ask=False), may_fail=True)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        say(f"first_run: {str(error) or 'interrupted'}", error=True)
        code = -1
    if code:
        if ahead.poll() is None:
            say(f"not removed yet: the switch (process {ahead.pid}) tries again at its deadline", error=True)
        elif ahead.returncode:
            say(f"THE FLEET IS STILL THERE, and the switch is gone: `gpuprov down {run.file}`", error=True)
        return 1
    ahead.terminate()
    run.switch.unlink(missing_ok=True)
    if clouds:
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            run.call(["gpuprov", "gc", str(run.file)], may_fail=True)
    if failed:
        return 1
    say(f"\n{archive}\nread it, then turn rows into measured ones, in a checkout of gpuprov:")
    say(f"    python scripts/measured.py {shlex.quote(str(archive))}")
    return 0 if healthy else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
