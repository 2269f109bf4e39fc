"""gpuprov's commands as an operator types them, in one process with the world: words → the function behind them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from provisioner.cli import gc, json_output, lifecycle, maintain, quarantine, replace, spec, ssh, status, verify
from provisioner.cli.exit import ending_of
from provisioner.common.errors import Exit
from tests.simulation.processes import Process

Call = Callable[..., Any]
CHANGES_NOTHING = ("plan", "status", "validate", "exec")

COMMANDS: Mapping[str, Call] = {
    "up": lambda file, *sites: lifecycle.up(file, yes=True, json_=True, site=list(sites) or None),
    "down": lambda file: lifecycle.down(file, yes=True, json_=True),
    "plan": lambda file: lifecycle.plan(file, json_=True),
    "upgrade": lambda file, *flags: lifecycle.upgrade(
        file, yes=True, json_=True, again="--again" in flags, rollback_all="--rollback-all" in flags
    ),
    "maintain": lambda file: maintain.maintain(file, at_once=True, yes=True, json_=True),
    "unlock": lifecycle.unlock,
    "replace": lambda file, *names: replace.replace(
        file,
        [name for name in names if not name.startswith("-")],
        even_if_healthy="--even-if-healthy" in names,
        yes=True,
        json_=True,
    ),
    "quarantine": lambda file, *names: quarantine.quarantine(file, list(names), reason="a person said so"),
    "release": lambda file, *names: quarantine.release(file, list(names)),
    "verify": lambda file, *level: verify.verify(file, level=level[0] if level else None, as_json=True),  # type: ignore[arg-type]
    "exec": lambda file: ssh.exec_(file, ["true"]),
    "status": lambda file: status.status(file, json_=True),
    "validate": lambda file: spec.validate([file]),
    "gc": lambda file: gc.gc(file, as_json=True),
}


def call(arguments: Sequence[str], folder: Path, process: Process) -> int:
    """The exit code of `gpuprov WORDS`, FILE being the folder's cluster.yaml; of the last one of "one && the next"."""
    if "&&" in arguments:
        end = list(arguments).index("&&")
        return call(arguments[:end], folder, process) or call(arguments[end + 1 :], folder, process)
    process.doing = " ".join(arguments)
    return code_of(lambda: COMMANDS[arguments[0]](folder / "cluster.yaml", *arguments[1:]), process)


def code_of(command: Callable[[], Any], process: Process) -> int:
    """The exit code of a command; as cli.main.run."""
    json_output.begin()
    ending = None
    try:
        command()
        return int(Exit.OK)
    except typer.Exit as stopped:
        return int(stopped.exit_code)
    except (Exception, KeyboardInterrupt) as error:
        ending = ending_of(error)
        if ending.said.startswith("gpuprov: internal error"):
            raise
    process.refused = True
    print(ending.said, file=sys.stderr)
    return ending.code
