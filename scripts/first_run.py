#!/usr/bin/env python3
"""One hour on a real machine: made, proven, its evidence kept, removed again, whatever happens meanwhile.

    python scripts/first_run.py examples/first-run/aws.yaml --budget 3

docs/first-real-run.md says what each example costs and proves. Every command is printed before it runs, so that all of
it can be typed by hand. Before machines are made a second process starts, in a session of its own: at the deadline,
which follows from the budget, it interrupts what runs and removes the fleet, also where this terminal is gone by then.
Standard library only; needs `gpuprov` in PATH.
"""

from __future__ import annotations

import argparse
import contextlib
import json
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
LOG = "first-run.log"


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


class Run:
    """One fleet's hour. `folder` keeps its log, its switch and its evidence."""

    def __init__(self, file: Path, *, sandbox: bool, folder: Path) -> None:
        self.file, self.folder = file, folder
        self.flags = ["--sandbox"] if sandbox else []

    def gpuprov(self, command: str, *words: str, ask: bool = True, sandbox: bool = True) -> list[str]:
        flags = [*(self.flags if sandbox else ()), *(() if ask else ("--yes",))]
        return ["gpuprov", command, str(self.file), *words, *flags]

    def call(self, argv: list[str], *, may_fail: bool = False) -> int:
        """Run it in the foreground, so that Ctrl-C reaches it, and keep it where the switch finds it."""
        print(f"$ {shlex.join(argv)}", flush=True)
        process = subprocess.Popen(argv)
        self.note(child=process.pid)
        try:
            code = process.wait()
        except KeyboardInterrupt:
            code = process.wait()
        self.note(child=None)
        if code and not may_fail:
            raise SystemExit(f"`{shlex.join(argv[:2])}` ended with {code}")
        return code

    def answer(self, argv: list[str]) -> Any:
        print(f"$ {shlex.join(argv)}", flush=True)
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
        try:
            return json.loads(done.stdout)
        except ValueError:
            raise SystemExit(f"`{shlex.join(argv[:2])}` ended with {done.returncode} and gave no document") from None

    @property
    def switch(self) -> Path:
        return self.folder / "switch.json"

    def note(self, **changes: Any) -> None:
        """What the switch has to know, written whole."""
        if not self.switch.exists():
            return
        state = json.loads(self.switch.read_text()) | changes
        beside = self.switch.with_suffix(".new")
        beside.write_text(json.dumps(state))
        beside.replace(self.switch)


def start_switch(run: Run, seconds: float) -> int:
    """The process that removes the fleet when the time is over. Gives its pid."""
    run.switch.write_text(
        json.dumps({"at": time.time() + seconds, "down": run.gpuprov("down", ask=False), "child": None})
    )
    with (run.folder / LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--switch", str(run.switch)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    return process.pid


def switch(file: Path) -> int:
    """Wait for the end of the run (its file is gone) or for the deadline; then remove the fleet, and try again until it
    is gone. Looks at the clock, not at its own time: a computer that slept acts when it wakes."""
    while True:
        try:
            state = json.loads(file.read_text())
        except FileNotFoundError:
            print("the run has ended by itself", flush=True)
            return 0
        if (left := state["at"] - time.time()) <= 0:
            break
        time.sleep(min(1.0, left))
    print(f"{time.ctime()}: the time is over: the fleet is removed", flush=True)
    if child := state["child"]:
        for kind, patience in ((signal.SIGINT, 120), (signal.SIGTERM, 30), (signal.SIGKILL, 5)):
            if not _ended(child, kind, patience):
                continue
            break
    for number in range(TRIES):
        code = subprocess.run(state["down"], check=False).returncode
        print(f"`gpuprov down` ended with {code}", flush=True)
        if code == 0:
            file.unlink(missing_ok=True)
            return 0
        if number + 1 < TRIES:
            time.sleep(PAUSE_S)
    print("THE FLEET IS STILL THERE: remove it by hand (docs/first-real-run.md)", flush=True)
    return 1


def _ended(pid: int, kind: signal.Signals, patience: int) -> bool:
    """Whether a process has ended within so many seconds after that signal."""
    with contextlib.suppress(ProcessLookupError):
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
    folder.mkdir(exist_ok=True)
    verdicts = []
    for number, node in enumerate(report["nodes"]):
        run.call(run.gpuprov("collect", node["name"], "--output", str(folder / f"node-{number}"), "--redact"))
        checks = {check["id"]: check["status"] for check in node["checks"]}
        verdicts.append({"machine": node.get("machine") or machine, "ok": node["ok"], "checks": checks})
    head = {
        "schema": 1,
        "machine": machine,
        "simulated": bool(run.flags),
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="a cluster.yaml; examples/first-run has some")
    parser.add_argument("--budget", type=float, help="what it may cost, in the price's currency")
    parser.add_argument("--hours", type=float, default=1.0, help="how long it may take at most")
    parser.add_argument("--price", type=float, help="what an hour costs, where `gpuprov cost` does not know")
    parser.add_argument("--folder", type=Path, help="where log and evidence are kept (default: beside the file)")
    parser.add_argument("--sandbox", action="store_true", help="rehearse it on this computer: nothing real is proven")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--switch", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.switch:
        return switch(given.switch)
    if given.file is None or not given.file.is_file():
        parser.error(f"{given.file or 'FILE'}: no such file")
    if not shutil.which("gpuprov"):
        parser.error("there is no gpuprov in PATH: in its checkout `pip install .`, or `source .venv/bin/activate`")
    folder = given.folder or given.file.parent / f"{given.file.stem}.first-run"
    folder.mkdir(exist_ok=True)
    run = Run(given.file, sandbox=given.sandbox, folder=folder)
    if run.switch.exists():
        parser.error(
            f"{run.switch} is there: a run before has not ended; see {folder / LOG}, or `gpuprov down {given.file}`"
        )

    say("the file, and what it may cost")
    run.call(run.gpuprov("validate", sandbox=False))
    cost = run.answer(["gpuprov", "cost", str(run.file), "--json", *(["--offline"] if given.sandbox else [])])
    machine, sums = cost["groups"][0]["machine"], cost["totals"]["on_demand"]["sums"]
    owned = all(group["provider"] == "baremetal" for group in cost["groups"])
    # on demand is the most: spot does not exceed it
    minutes, hour = given.hours * 60, given.price or (float(sums[0]["hour"]) if len(sums) == 1 else None)
    if not owned and not given.sandbox:
        if hour is None:
            parser.error(
                "what an hour costs is not known: --price AMOUNT says so, and --budget AMOUNT what it may cost"
            )
        if given.budget is None:
            parser.error(f"--budget AMOUNT says what it may cost; an hour costs {hour:.2f} at most")
        minutes = min(minutes, given.budget / hour * 60)
        if minutes < LEAST_MIN:
            parser.error(
                f"{given.budget:.2f} buys {minutes:.0f} minutes of {hour:.2f} an hour; it takes {LEAST_MIN:.0f}"
            )
    say("what would keep it from working")
    run.call(run.gpuprov("lock"))
    run.call(run.gpuprov("plan"))
    most = f", at most {hour * minutes / 60:.2f}" if hour and not given.sandbox else ""
    print(
        f"\nat most {minutes:.0f} minutes{most}; then everything is removed, by a process that outlives this terminal"
    )
    if not given.yes and input("go on? [y/N] ").strip().lower() not in ("y", "yes"):
        return 0

    return hour_of(run, machine, minutes, clouds=not owned and not given.sandbox)


def hour_of(run: Run, machine: str, minutes: float, *, clouds: bool) -> int:
    """From the switch to the removal. Gives the exit status."""
    pid = start_switch(run, minutes * 60)
    print(f"the switch is process {pid}; its log is {run.folder / LOG}")
    failed, healthy, archive = "", False, run.folder
    try:
        say("machines are made, configured and proven")
        healthy = run.call(run.gpuprov("up", ask=False), may_fail=True) == 0
        say("evidence")
        archive = evidence(run, machine)
        print(f"\n{machine} is {'proven healthy' if healthy else 'NOT healthy: look at the report above'}")
    except (SystemExit, KeyboardInterrupt) as error:
        failed = str(error) or "interrupted"
        print(f"first_run: {failed}", file=sys.stderr)
    say("everything is removed")
    if run.call(run.gpuprov("down", ask=False), may_fail=True):
        print(f"not removed yet: the switch (process {pid}) tries again at its deadline", file=sys.stderr)
        return 1
    run.switch.unlink(missing_ok=True)
    if clouds:
        run.call(["gpuprov", "gc", str(run.file)], may_fail=True)
    if failed:
        return 1
    print(f"\n{archive}\nread it, then turn rows into measured ones, in a checkout of gpuprov:")
    print(f"    python scripts/measured.py {archive}")
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main())
