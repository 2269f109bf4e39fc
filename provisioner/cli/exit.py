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
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from provisioner import __version__
from provisioner.common.errors import Exit, GpuprovError, InputError, Interrupted, Problem
from provisioner.transport.process import interrupted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from provisioner.output.error import ErrorOutput

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
    """`said`: for a person; the rest is the document's (output/error.py)."""

    code: int
    said: str
    message: str
    where: str = ""
    hint: str = ""
    error_code: str = "ended"
    problems: tuple[Problem, ...] = ()

    def document(self) -> ErrorOutput:
        from provisioner.output.error import ErrorOutput, FailureOutput
        from provisioner.output.validate import ProblemOutput

        # Not checked: an error of an error would say nothing.
        return ErrorOutput.model_construct(
            ok=False,
            exit_code=self.code,
            error=FailureOutput.model_construct(
                code=self.error_code, message=self.message, where=self.where, hint=self.hint
            ),
            problems=[ProblemOutput.model_construct(**asdict(problem)) for problem in self.problems],
        )


@contextlib.contextmanager
def resumable(resume_hint: str) -> Iterator[None]:
    """Ctrl-C, and a request to end, leave what was done; `resume_hint` says how to go on. Raises Interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("interrupted; progress is saved", hint=resume_hint) from None


def ending_with(code: int) -> Ending:
    """A command that ended with a code and said itself why."""
    return Ending(code, "", f"ended with exit code {code}; standard error says why")


def ending_of(error: BaseException) -> Ending:
    """The ending of a call that raised this."""
    if isinstance(error, GpuprovError):
        bare = error.exit_code == Exit.BAD_INPUT and error.where != ""  # file:line: message, as editors read it
        text = str(error) if bare else f"gpuprov: {error}"
        problems = tuple(error.problems) if isinstance(error, InputError) else ()
        return Ending(int(error.exit_code), text, error.message, error.where, error.hint, error.code, problems)
    if isinstance(error, (typer.Abort, KeyboardInterrupt)):
        return Ending(int(Exit.INTERRUPTED), "gpuprov: interrupted", "interrupted", error_code="interrupted")
    if isinstance(error, _ClickException):
        usage, hint = io.StringIO(), _missing_file(error)
        error.show(file=usage)
        text = usage.getvalue().rstrip("\n") + (f"\n  {hint}" if hint else "")
        message = error.format_message().partition("\n")[0]
        return Ending(int(error.exit_code), text, message, hint=hint, error_code="usage")
    if isinstance(error, OSError) and error.errno in MACHINE_REFUSES:
        location = str(error.filename or "this machine")
        reason = error.strerror or str(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) and not error.filename
        hint = "`df -h . /tmp ~` shows which disk is full" if full else _who_may(error)
        text = f"gpuprov: {location}: {reason}" + (f"\n  {hint}" if hint else "")
        return Ending(int(Exit.BAD_INPUT), text, reason, location, hint, "this_machine")
    if interrupted():  # it came while a library was at work that made something else of it
        return Ending(int(Exit.INTERRUPTED), "gpuprov: interrupted", "interrupted", error_code="interrupted")
    text = _internal_error(error)
    hint = "\n".join(text.splitlines()[1:2]).strip()
    return Ending(int(Exit.CHECK_FAILED), text, text.partition("\n")[0], hint=hint, error_code="internal_error")


def _missing_file(error: Any) -> str:
    """What to type where the first argument of a command, its file, is missing; empty for all other wrong usage."""
    missing, context = getattr(error, "param", None), getattr(error, "ctx", None)
    if type(error).__name__ != "MissingParameter" or context is None or getattr(missing, "metavar", "") not in FILES:
        return ""
    from provisioner.spec.cluster_files import what_to_type

    other_parameters = [
        parameter for parameter in context.command.params if parameter is not missing and parameter.required
    ]
    arguments = "".join(
        f" {parameter.metavar}" for parameter in other_parameters if parameter.param_type_name == "argument"
    )
    return what_to_type(context.command_path, arguments)


def _who_may(error: OSError) -> str:
    """What to do about a file that is root's, made by a run with sudo that was killed."""
    from provisioner.common.ownership import barrier

    owned = barrier(str(error.filename)) if error.errno in (errno.EACCES, errno.EPERM) and error.filename else None
    if owned is None or owned[1] != 0:
        return ""
    return f"{owned[0]} belongs to root: run the same command with sudo"


def _internal_error(error: BaseException) -> str:
    import traceback

    text = "".join(traceback.format_exception(error))
    traceback_file = _keep(f"gpuprov {__version__}\n{' '.join(sys.argv)}\n\n{text}")
    summary = f"gpuprov: internal error, a bug in gpuprov: {type(error).__name__}: {error}"
    return f"{summary}\n  the full traceback is in {traceback_file}" if traceback_file else f"{summary}\n{text}"


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
