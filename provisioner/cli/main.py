"""The console entry: which commands there are, and what becomes of their errors.

Commands are loaded when they are used, so that `gpuprov --help` costs no import of theirs. A command is a function with
Typer annotations, or a `typer.Typer` where it has commands of its own; it raises GpuprovError for what a user can mend
and `typer.Exit(code)` for an answer of no; what becomes of anything else that is raised is in cli/exit.py.
"""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from provisioner import __version__
from provisioner.cli import json_output, streams
from provisioner.cli.exit import ending_of, ending_with
from provisioner.cli.remote_command import DividedCommand, RemoteCommand
from provisioner.common import ownership
from provisioner.common.errors import Exit
from provisioner.common.suggest import did_you_mean


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command lives. `verbatim`: options that are not gpuprov's belong to a command for the nodes; `divided`:
    what stands behind `--` does."""

    target: str
    help: str
    verbatim: bool = False
    divided: bool = False


COMMANDS: dict[str, Entry] = {
    "init": Entry("provisioner.cli.spec:init", "Write a commented cluster.yaml to start from."),
    "validate": Entry("provisioner.cli.spec:validate", "Check a cluster.yaml: every problem with its line and column."),
    "lock": Entry("provisioner.cli.lifecycle:lock", "Choose compatible versions and write cluster.lock."),
    "plan": Entry("provisioner.cli.lifecycle:plan", "Show what `up` would create, change and cost."),
    "up": Entry("provisioner.cli.lifecycle:up", "Create the fleet, install the stack, verify it. Safe to run again."),
    "status": Entry("provisioner.cli.status:status", "Show nodes, addresses, stages and last verdicts."),
    "verify": Entry("provisioner.cli.verify:verify", "Verify the fleet, a host or a bundle."),
    "quarantine": Entry("provisioner.cli.quarantine:quarantine", "Take nodes out of service, with a reason."),
    "ack": Entry("provisioner.cli.ack:ack", "Acknowledge a warning of a node, for a time."),
    "release": Entry("provisioner.cli.quarantine:release", "Put nodes back into service."),
    "collect": Entry("provisioner.cli.verify:collect", "Save a node's raw outputs as a support bundle."),
    "facts": Entry("provisioner.cli.verify:facts", "Show the facts read from a node, before any check."),
    "ssh": Entry("provisioner.cli.ssh:ssh", "Log in to a node.", verbatim=True),
    "exec": Entry("provisioner.cli.ssh:exec_", "Run a command on every node.", verbatim=True),
    "run": Entry("provisioner.cli.run:run", "Run a training on nodes; follow, list, stop it.", divided=True),
    "bench": Entry("provisioner.cli.bench:bench", "Measure trainings on one GPU, each node, all nodes.", divided=True),
    "cp": Entry("provisioner.cli.ssh:cp", "Copy files to a node, or from it."),
    "ssh-config": Entry("provisioner.cli.ssh:ssh_config", "Print the nodes for your own ssh, scp and rsync."),
    "replace": Entry("provisioner.cli.replace:replace", "Replace a bad machine, under the same name."),
    "maintain": Entry("provisioner.cli.maintain:maintain", "Patch, clean and reboot a running fleet in its window."),
    "upgrade": Entry("provisioner.cli.lifecycle:upgrade", "Move a running fleet to a new lock; roll back on failure."),
    "unlock": Entry("provisioner.cli.lifecycle:unlock", "Clear the lock of a dead run."),
    "gc": Entry("provisioner.cli.gc:gc", "Find and remove resources that a crash left behind."),
    "image": Entry("provisioner.cli.image:app", "Build golden images, prove them, move them through channels."),
    "monitoring": Entry(
        "provisioner.cli.monitoring:app", "Open Prometheus of a head node; export rules and dashboards."
    ),
    "down": Entry("provisioner.cli.lifecycle:down", "Remove everything that `up` created."),
    "bmc": Entry("provisioner.cli.bmc:bmc", "Ask bare metal's BMCs: status, power, event logs."),
    "netboot": Entry("provisioner.cli.netboot:netboot", "Install bare metal that starts from the network."),
    "catalog": Entry("provisioner.cli.catalog:catalog", "Show the known machine types."),
    "cost": Entry("provisioner.cli.cost:cost", "Show what a fleet or a machine costs, here and in other regions."),
    "size": Entry("provisioner.cli.size:size", "Estimate memory, machines, days and cost of a training."),
    "doctor": Entry("provisioner.cli.doctor:doctor", "Show what this machine lacks and how to install it."),
    "docs": Entry("provisioner.cli.docs:docs", "Print the documentation: all pages, one, or a section."),
    "schema": Entry("provisioner.cli.spec:schema", "Print a JSON schema: cluster.yaml or a --json output."),
    "sandbox": Entry("provisioner.cli.sandbox:app", "List, inject and clear faults on sandbox nodes."),
}
"""One row for each command, in the order of a fleet's life; shown by `gpuprov --help` without importing anything."""
STARTS_NOTHING = ("init", "validate", "catalog", "size", "doctor", "docs", "schema")
"""Commands without a process that could outlive them."""
VERBATIM = tuple(name for name, entry in COMMANDS.items() if entry.verbatim)


class LazyGroup(TyperGroup):
    """The top of the command line: knows the commands by name, imports one when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 (the signature is Typer's)
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else load(cmd_name, entry)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Raises Typer's UsageError for a command that there is not, with the nearest ones."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            suggestion = did_you_mean(args[0], COMMANDS, limit=2)
            ctx.fail(f"there is no command {args[0]}" + (f": {suggestion}" if suggestion else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


def load(name: str, entry: Entry) -> Any:
    """The Typer command behind a row of COMMANDS."""
    module, _, attribute = entry.target.partition(":")
    target = getattr(import_module(module), attribute)
    if isinstance(target, typer.Typer):
        return typer.main.get_command(target)
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, cls=RemoteCommand if entry.verbatim else DividedCommand if entry.divided else None)(target)
    return typer.main.get_command(single)


app = typer.Typer(
    cls=LazyGroup,
    name="gpuprov",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"gpuprov {__version__}")
        raise typer.Exit


@app.callback()
def gpuprov(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Provision and verify GPU fleets from one YAML file."""


def main(arguments: list[str] | None = None, *, interruptible: bool = False) -> None:
    """Runs the command line and exits with a code of errors.Exit. `interruptible`: Ctrl-C is ours to catch."""
    streams.guard()
    arguments_given = sys.argv[1:] if arguments is None else arguments
    try:
        _catch(interruptible=interruptible)
        if (
            arguments_given
            and arguments_given[0] in COMMANDS
            and arguments_given[0] not in STARTS_NOTHING
            and "--help" not in arguments_given
        ):
            _keep()
        code = streams.close(run(arguments_given))
    except KeyboardInterrupt:  # before there was a command, or while a reader kept the last words waiting
        code = int(Exit.INTERRUPTED)
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def _keep() -> None:
    """A command that is killed leaves no process behind."""
    from provisioner.transport.process import keep

    keep()


def _catch(*, interruptible: bool) -> None:
    """A request to end is an interruption, for every command: what was begun is put down in order."""
    from provisioner.transport.process import interrupt

    if interruptible:
        signal.signal(signal.SIGINT, interrupt)
    for sign in (signal.SIGTERM, signal.SIGHUP):  # SIGHUP: the terminal was closed; nohup ignores it, and so do we then
        if signal.getsignal(sign) is signal.SIG_DFL:
            signal.signal(sign, interrupt)


def run(arguments: list[str]) -> int:
    """The exit code of one call; messages go to stderr, so that stdout holds the answer alone."""
    json_output.begin()
    ending = None
    try:
        # Not Command.main(): that turns a broken pipe into exit 1 and Ctrl-C into "Aborted!".
        command = typer.main.get_command(app)
        with command.make_context("gpuprov", list(arguments)) as context:
            command.invoke(context)
        return int(Exit.OK)
    except typer.Exit as stopped:
        ending = ending_with(int(stopped.exit_code))
    except (Exception, KeyboardInterrupt) as error:
        ending = ending_of(error)
    finally:
        ownership.settle()
    if ending.said:
        print(ending.said, file=sys.stderr)
    if (ending.said or ending.code) and not json_output.written() and json_output.requested(arguments, VERBATIM):
        json_output.write(ending.document())
    return ending.code


if __name__ == "__main__":
    main()
