"""Running the hook: a unit of its own, gpuprov-interrupted.service, so that it outlives a restart of the watcher, and systemd
ends it 20 s before the machine goes."""

from __future__ import annotations

import time

from interruption.metadata import seconds_of
from interruption.node import notify, run, say

RESERVE_S = 20
"""Left between the hook's end and the machine's."""
MOST_S, LEAST_S = 100, 5
"""Seconds that a hook has: two minutes less the reserve; a notice that comes late still gets the least."""
STOPPED_S = 3
"""After which a hook that systemd does not have as running was stopped by somebody."""
UNIT = "gpuprov-interrupted.service"
LINES = 20
"""Of the hook's output, in the record; the journal has all."""


class Hook:
    """How it runs; `hook` is its part of the record. `save`: writes the record; `most_s`: seconds that it has at most."""

    def __init__(self, node, file, most_s, save):
        self.node, self.file, self.most_s, self.save = node, file, most_s, save

    def start(self, hook):
        action, _, when = hook["notice"].partition(" ")
        remaining = seconds_of(when) - time.time() - RESERVE_S
        deadline = int(max(LEAST_S, min(self.most_s, remaining)))
        say("running the hook, which has {} s".format(deadline))
        code, output = run(
            "systemd-run", "--quiet", "--no-block", "--unit=" + UNIT, "--description=gpuprov: hooks.interrupted",
            "--service-type=oneshot", "--remain-after-exit", "--property=TimeoutStartSec={}".format(deadline),
            "--property=TimeoutStopSec=5", "--setenv=GPUPROV_NODE=" + self.node,
            "--setenv=GPUPROV_ACTION=" + action, "--setenv=GPUPROV_TIME=" + when, "/bin/sh", self.file,
        )  # fmt: skip
        if code:
            hook.update(state="ended", result="not started", output=output.splitlines()[-LINES:])
            say("the hook could not be started: {}".format(output))
            self.save()

    def unit(self):
        """What systemd knows of the hook's unit; empty where it does not answer."""
        fields = "ActiveState,Result,ExecMainCode,ExecMainStatus,InvocationID"
        code, output = run("systemctl", "show", "--property", fields, "--", UNIT)
        return dict(line.split("=", 1) for line in output.splitlines() if "=" in line) if code == 0 else {}

    def wait(self, hook):
        """Until systemd says that the hook has ended, which it sees to: active or failed, by how it was started."""
        began = time.monotonic()
        while hook["state"] == "running":
            notify("WATCHDOG=1")
            known, waited = self.unit(), time.monotonic() - began
            state = known.get("ActiveState", "unknown")
            if state in ("active", "failed"):
                self._ended(hook, known)
            elif waited > self.most_s + 15 or (state == "inactive" and waited > STOPPED_S):
                self._ended(hook, {"Result": "stopped" if state == "inactive" else "no end seen"})
            else:
                time.sleep(0.2)

    def _ended(self, hook, known):
        # 1: exited (siginfo's CLD_EXITED); else the status is a signal.
        exited = known.get("ExecMainCode") == "1" and known.get("ExecMainStatus", "").isdigit()
        run("journalctl", "--sync", timeout=5)
        command = ["journalctl", "--no-pager", "--output=cat", "--lines={}".format(LINES), "--unit=" + UNIT]
        if known.get("InvocationID"):
            command.append("_SYSTEMD_INVOCATION_ID=" + known["InvocationID"])
        code, output = run(*command)
        hook.update(state="ended", result=known.get("Result") or "unknown",
                    status=int(known["ExecMainStatus"]) if exited else None,
                    output=[line[:400] for line in output.splitlines()][-LINES:] if code == 0 else [])  # fmt: skip
        status = "exit status {}".format(hook["status"]) if exited else "result " + hook["result"]
        say("the hook ended: {}, after {:.1f} s".format(status, time.time() - hook["began"]))
        self.save()

    def clear(self):
        """Those of an earlier notice, which was taken back: its unit stays for its end to be known."""
        run("systemctl", "stop", UNIT)
        run("systemctl", "reset-failed", UNIT)
