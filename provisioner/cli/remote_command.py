"""`ssh` and `exec` end in a command for a node: gpuprov's own options stand before it, and what follows its first word
is the command's, whatever it looks like."""

from __future__ import annotations

from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperOption


class RemoteCommand(TyperCommand):
    """A command of Typer's whose last argument takes all that is left."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises Typer's UsageError for an option that stands before the command and is none of gpuprov's."""
        own, remote = self._divided(ctx, args)
        if remote and remote[0].startswith("-"):
            ctx.fail(f"a command cannot begin with {remote[0]}")
        return super().parse_args(ctx, [*own, "--", *remote] if remote else own)

    def _divided(self, ctx: Any, args: list[str]) -> tuple[list[str], list[str]]:
        """Arguments of gpuprov's, and the node's command."""
        takes_value = {
            name: not option.is_flag
            for option in self.get_params(ctx)
            if isinstance(option, TyperOption)
            for name in (*option.opts, *option.secondary_opts)
        } | dict.fromkeys(self.get_help_option_names(ctx), False)
        positions = sum(isinstance(one, TyperArgument) and one.nargs == 1 for one in self.params)
        own, words = list[str](), list(args)
        while words:
            word = words.pop(0)
            if word == "--":
                return own, words
            if not word.startswith("-") or word == "-":
                if not positions:
                    return own, [word, *words]
                positions -= 1
                own.append(word)
                continue
            name, equals, _ = word.partition("=")
            if name not in takes_value:
                known = ", ".join(sorted(option for option in takes_value if option.startswith("--")))
                ctx.fail(f"no option {name}: there are {known}; those of a command stand behind it")
            own.append(word)
            if words and not equals and takes_value[name]:
                own.append(words.pop(0))
        return own, []
