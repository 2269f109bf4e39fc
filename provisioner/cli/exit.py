"""How a call ends that raised something: its exit code, what is said on standard error, and the document that stands in
for the answer where `--json` was given.

An internal error, that is a bug in gpuprov, exits with 1, because then nothing is proven, and leaves its traceback in a
file.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from provisioner import __version__, ownership
from provisioner.errors import Exit, GpuprovError, InputError, Interrupted, Problem
from provisioner.process import interrupted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ClickException: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

FILES = ("FILE", "RECIPE")
"""Arguments that are a file of gpuprov's."""

MACHINE_REFUSES = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG, errno.EMFILE, errno.ENOTDIR,
    errno.EISDIR, errno.ELOOP, errno.EFBIG, errno.ENFILE,
}  # fmt: skip
"""What the machine that gpuprov runs on may answer to a write, and a user can fix: no bug of ours."""


@dataclass(frozen=True, slots=True)
class Ending:
    """`said`: for a person; the rest is the document's (documents/error.py)."""

    code: int
    said: str
    message: str
    where: str = ""
    hint: str = ""
    problems: tuple[Problem, ...] = ()

    def document(self) -> dict[str, Any]:
        return {
            "ok": False,
            "exit_code": self.code,
            "error": {"message": self.message, "where": self.where, "hint": self.hint},
            "problems": [asdict(problem) for problem in self.problems],
        }


def typed(
    command: str, file: Path, *, sandbox: bool | None, sites: Sequence[str] = (), names: Sequence[str] = ()
) -> str:  # fmt: skip
    """A command on a file and nodes of it, to be typed as it is: with sudo for a person who came with it."""
    program = f"sudo {ownership.program()}" if ownership.person() else "gpuprov"
    only = "".join([*(f" {name}" for name in names), *(f" --site {site}" for site in sites)])
    return f"{program} {command} {shlex.quote(str(file))}{only}{' --sandbox' if sandbox else ''}"


@contextlib.contextmanager
def resumable(again: str) -> Iterator[None]:
    """Ctrl-C, and a request to end, leave what was done; `again` says how to go on. Raises Interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("interrupted; progress is saved", hint=again) from None


def ending_with(code: int) -> Ending:
    """A command that ended with a code and said itself why."""
    return Ending(code, "", f"ended with exit code {code}; standard error says why")


def ending_of(error: BaseException) -> Ending:
    """The ending of a call that raised this."""
    if isinstance(error, GpuprovError):
        bare = error.exit_code == Exit.BAD_INPUT and error.where != ""  # file:line: message, as editors read it
        said = str(error) if bare else f"gpuprov: {error}"
        problems = tuple(error.problems) if isinstance(error, InputError) else ()
        return Ending(int(error.exit_code), said, error.message, error.where, error.hint, problems)
    if isinstance(error, (typer.Abort, KeyboardInterrupt)):
        return Ending(int(Exit.INTERRUPTED), "gpuprov: interrupted", "interrupted")
    if isinstance(error, _ClickException):
        shown, hint = io.StringIO(), _missing_file(error)
        error.show(file=shown)
        said = shown.getvalue().rstrip("\n") + (f"\n  {hint}" if hint else "")
        return Ending(int(error.exit_code), said, error.format_message().partition("\n")[0], hint=hint)
    if isinstance(error, OSError) and error.errno in MACHINE_REFUSES:
        where = str(error.filename or "this machine")
        reason = error.strerror or str(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) and not error.filename
        hint = "`df -h . /tmp ~` shows which disk is full" if full else _who_may(error)
        said = f"gpuprov: {where}: {reason}" + (f"\n  {hint}" if hint else "")
        return Ending(int(Exit.BAD_INPUT), said, reason, where, hint)
    if interrupted():  # it came while a library was at work that made something else of it
        return Ending(int(Exit.INTERRUPTED), "gpuprov: interrupted", "interrupted")
    said = _internal_error(error)
    return Ending(int(Exit.CHECK_FAILED), said, said.partition("\n")[0], hint="\n".join(said.splitlines()[1:2]).strip())


def _missing_file(error: Any) -> str:
    """What to type where the first argument of a command, its file, is missing; empty for all other wrong usage."""
    missing, context = getattr(error, "param", None), getattr(error, "ctx", None)
    if type(error).__name__ != "MissingParameter" or context is None or getattr(missing, "metavar", "") not in FILES:
        return ""
    from provisioner.cluster_files import what_to_type

    others = [one for one in context.command.params if one is not missing and one.required]
    arguments = "".join(f" {one.metavar}" for one in others if one.param_type_name == "argument")
    return what_to_type(context.command_path, arguments)


def _who_may(error: OSError) -> str:
    """What to do about a file that is root's, made by a run with sudo that was killed."""
    from provisioner.ownership import barrier

    found = barrier(str(error.filename)) if error.errno in (errno.EACCES, errno.EPERM) and error.filename else None
    if found is None or found[1] != 0:
        return ""
    return f"{found[0]} belongs to root: run the same command with sudo"


def _internal_error(error: BaseException) -> str:
    import traceback

    text = "".join(traceback.format_exception(error))
    place = _keep(f"gpuprov {__version__}\n{' '.join(sys.argv)}\n\n{text}")
    summary = f"gpuprov: internal error, a bug in gpuprov: {type(error).__name__}: {error}"
    return f"{summary}\n  the full traceback is in {place}" if place else f"{summary}\n{text}"


def _keep(text: str) -> Path | None:
    """Writes a traceback where only its owner reads it; None where nothing can be written."""
    import tempfile
    import time
    from pathlib import Path

    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    name = f"internal-error-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.txt"
    for folder in (state / "gpuprov", Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = folder / name
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
                stream.write(text)
        except OSError:
            continue
        return path
    return None
