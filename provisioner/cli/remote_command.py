"""Commands that end in a command for nodes. `ssh` and `exec`: gpuprov's own options stand before it, and what follows
its first word is the command's, whatever it looks like. `run`: what follows `--`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

_UsageError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "UsageError")


class RemoteCommand(TyperCommand):
    """A command of Typer's whose last argument takes all that is left."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises Typer's UsageError for an option that stands before the command and is none of gpuprov's."""
        local_arguments, remote = self._divided(ctx, args)
        if remote and remote[0].startswith("-"):
            ctx.fail(f"a command cannot begin with {remote[0]}")
        return super().parse_args(ctx, [*local_arguments, "--", *remote] if remote else local_arguments)

    def _divided(self, ctx: Any, args: list[str]) -> tuple[list[str], list[str]]:
        """Arguments of gpuprov's, and the node's command."""
        takes_value = {
            name: not option.is_flag
            for option in self.get_params(ctx)
            if isinstance(option, TyperOption)
            for name in (*option.opts, *option.secondary_opts)
        } | dict.fromkeys(self.get_help_option_names(ctx), False)
        positions = sum(isinstance(parameter, TyperArgument) and parameter.nargs == 1 for parameter in self.params)
        local_arguments, remaining = list[str](), list(args)
        while remaining:
            argument = remaining.pop(0)
            if argument == "--":
                return local_arguments, remaining
            if not argument.startswith("-") or argument == "-":
                if not positions:
                    return local_arguments, [argument, *remaining]
                positions -= 1
                local_arguments.append(argument)
                continue
            name, equals, _ = argument.partition("=")
            if name not in takes_value:
                known = ", ".join(sorted(option for option in takes_value if option.startswith("--")))
                ctx.fail(f"no option {name}: there are {known}; those of a command stand behind it")
            local_arguments.append(argument)
            if remaining and not equals and takes_value[name]:
                local_arguments.append(remaining.pop(0))
        return local_arguments, []


REMAINING = "gpuprov.remaining"
"""In a context's `meta`: what stands behind `--`."""


class DividedCommand(TyperCommand):
    """A command of Typer's that does not look at what stands behind `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        local_arguments, remaining = list(args), list[str]()
        if "--" in args:
            at = args.index("--")
            local_arguments, remaining = args[:at], args[at + 1 :]
        if remaining[:1] == ["--"]:
            del remaining[0]
        ctx.meta[REMAINING] = tuple(remaining)
        try:
            return super().parse_args(ctx, local_arguments)
        except _UsageError as error:
            if type(error).__name__ == "NoSuchOption":
                ctx.fail(f"no option {error.option_name}; options of the program stand behind --")
            raise
