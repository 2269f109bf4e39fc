#!/usr/bin/python
"""Several systemd units of a node, enabled and started in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_units
short_description: Enable and start several systemd units, in one call
description:
  - Reads the unit files again where systemd says that it should, lifts masks, enables and starts what is not; nothing
    is called where all units are as asked.
  - A unit that does not start fails the task with what it wrote to the journal.
options:
  started:
    description: Units that run now and at boot, in the order in which they are started.
    type: list
    elements: str
    default: []
  restarted:
    description: Units of O(started) that are started afresh although they run, because their files have changed.
    type: list
    elements: str
    default: []
  stopped:
    description: Units that neither run nor start at boot; one that is not there is fine.
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds that starting one unit may take.
    type: int
    default: 180
author: gpuprov
"""

EXAMPLES = r"""
- name: Start containers' services, now and at boot
  node_units:
    started: [gpuprov-cdi.service, docker.service]
"""

RETURN = r"""
done:
  description: What was called, as words of systemctl.
  type: list
  elements: str
  returned: always
"""

import subprocess

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpuprov_record import note

FIELDS = ("Id", "LoadState", "ActiveState", "UnitFileState", "NeedDaemonReload")


def systemctl(*arguments, timeout=60):
    """Exit status and everything that it said."""
    try:
        done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return 124, "no end after {0} s".format(timeout)
    return done.returncode, (done.stdout + done.stderr).strip()


def show(units):
    """Unit → its properties, as systemd has them now."""
    code, text = systemctl("show", "--property", ",".join(FIELDS), "--", *units)
    blocks = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in text.split("\n\n")]
    if code or len(blocks) != len(units):
        raise RuntimeError("systemctl show: {0}".format(text or "status {0}".format(code)))
    return dict(zip(units, blocks, strict=True))


def journal(unit):
    """The last lines that the unit wrote."""
    command = ["journalctl", "--no-pager", "--output", "cat", "--lines", "8", "--unit", unit]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return " | ".join(line.strip() for line in done.stdout.splitlines() if line.strip())


def named(unit):
    return unit if "." in unit else unit + ".service"


def bring(params, check_mode):
    """Bring the units to what was asked. Returns the calls of systemctl; raises RuntimeError where one fails."""
    started, stopped = [named(u) for u in params["started"]], [named(u) for u in params["stopped"]]
    restarted = {named(u) for u in params["restarted"]}
    state = show(started + stopped) if started or stopped else {}
    done = []

    def call(*arguments):
        done.append(" ".join(arguments))
        if check_mode:
            return
        code, text = systemctl(*arguments, timeout=params["timeout"])
        if code:
            log_text = journal(arguments[-1]) if arguments[0] in ("start", "restart") else ""
            raise RuntimeError(
                ": ".join(part for part in ("systemctl " + " ".join(arguments), log_text or text) if part)
            )

    # A unit file that was written a moment ago is not known yet (not-found) or known in its old form.
    if any(s["NeedDaemonReload"] == "yes" for s in state.values()) or any(
        state[unit]["LoadState"] == "not-found" for unit in started
    ):
        if not check_mode:
            systemctl("daemon-reload")
            state = show(started + stopped)
    masked = [unit for unit in started if state[unit]["UnitFileState"] == "masked"]
    if masked:
        call("unmask", *masked)
        state |= show(masked) if not check_mode else {}
    enable = [u for u in started if state[u]["UnitFileState"] not in ("enabled", "static", "indirect", "generated")]
    if enable:
        if not check_mode:
            note("units", enable)
        call("--quiet", "enable", *enable)
    for unit in started:
        if state[unit]["ActiveState"] not in ("active", "reloading"):
            call("start", unit)
        elif unit in restarted:
            call("restart", unit)
    for unit in stopped:
        if state[unit]["LoadState"] == "not-found":
            continue
        if state[unit]["ActiveState"] not in ("inactive", "failed"):
            call("stop", unit)
        if state[unit]["UnitFileState"] == "enabled":
            call("--quiet", "disable", unit)
    return done


def main():
    """Bring the units to what was asked."""
    names = {"type": "list", "elements": "str", "default": []}
    module = AnsibleModule(
        argument_spec={
            "started": names, "restarted": names, "stopped": names, "timeout": {"type": "int", "default": 180},
        },
        supports_check_mode=True,
    )  # fmt: skip
    try:
        done = bring(module.params, module.check_mode)
    except (RuntimeError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(done), done=done)


if __name__ == "__main__":
    main()
