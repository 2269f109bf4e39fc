"""A node's raw outputs: one text per command, with how the command ended.

On disk a bundle is a directory of plain files named by what ran (nvidia-smi.xml, topo.txt, …), each optional, so
that captures copied by hand are a bundle as well. `probe.json` beside them, written by gpuprov only, keeps what
plain text cannot: exit status, seconds, a hung or missing tool, a failed connection.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from provisioner.common import regular_file
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import private_dir, write_whole
from provisioner.common.text import single_line
from provisioner.verify.tools import FILES

SIMULATED = "simulated by gpuprov"
SAYS_SO = ("host.json", "nvidia-version.txt")
"""Where a sandbox node has those words: the model of its processors, the driver's version."""
STATUS = "probe.json"
LIMIT = 8 * 1024 * 1024
"""Characters read of one file: above every real output (eight B200 in XML are 357 kB, a kernel log that the probe cut
4 MiB) and below what hurts."""
SAID = 2000
"""Characters kept of what a command or a node said of an error: it stands in the message of many checks."""
GREATEST = 1e12
"""Above every number of a bundle: seconds since 1970 reach it in the year 33658."""


@dataclass(frozen=True, slots=True)
class Output:
    """What one command gave. `rc` is None when it was killed, never started, or nobody wrote it down."""

    text: str
    rc: int | None = None
    seconds: float | None = None
    timed_out: bool = False
    missing: bool = False
    """The tool is not installed."""
    truncated: bool = False
    error: str = ""
    """The end of its standard error, or why nothing came."""
    unfit: str = ""
    """What lies in the place of its file, where that is no plain file: it was not read."""
    partial: str = ""
    """Why it is not all of what the tool says: then nothing wrong in it is no sign of health."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any], text: str | None = None) -> Output:
        """From an untrusted mapping: a value of the wrong type is dropped, not believed."""
        rc, error, unfit, partial = (data.get(key) for key in ("rc", "error", "unfit", "partial"))
        if text is None:
            recorded = data.get("text")
            text = recorded if isinstance(recorded, str) else ""
        return cls(
            text=text[:LIMIT],
            rc=rc if _number(rc) is not None and isinstance(rc, int) else None,
            seconds=_number(data.get("seconds")),
            timed_out=data.get("timed_out") is True,
            missing=data.get("missing") is True,
            truncated=data.get("truncated") is True or len(text) > LIMIT,
            error=error[-SAID:] if isinstance(error, str) else "",
            unfit=unfit[:SAID] if isinstance(unfit, str) else "",
            partial=partial[:SAID] if isinstance(partial, str) else "",
        )

    def without_text(self) -> Output:
        return Output(
            "", self.rc, self.seconds, self.timed_out, self.missing, self.truncated,
            self.error, self.unfit, self.partial,
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        """Everything but the text."""
        return {
            "rc": self.rc,
            "seconds": self.seconds,
            "timed_out": self.timed_out,
            "missing": self.missing,
            "truncated": self.truncated,
            "error": self.error,
            **({"unfit": self.unfit} if self.unfit else {}),
            **({"partial": self.partial} if self.partial else {}),
        }


@dataclass(frozen=True, slots=True)
class Bundle:
    """All outputs of one node. `error` says why there are none (unreachable, hung, no Python …); `collected` is
    the node's clock (seconds since 1970) when they were made, None where nobody wrote it down."""

    files: Mapping[str, Output] = field(default_factory=dict)
    error: str = ""
    collected: float | None = None
    seconds: float | None = None
    received: float | None = None
    """This computer's clock when they arrived; None where nobody wrote it down."""

    @property
    def simulated(self) -> bool:
        """Whether the machine says that gpuprov simulates it: a sandbox node's own /proc does, whoever asks."""
        return any(SIMULATED in self.files[name].text for name in SAYS_SO if name in self.files)

    @property
    def characters(self) -> int:
        """Of all texts."""
        return sum(len(output.text) for output in self.files.values())

    def joined(self, later: Bundle, names: Iterable[str]) -> Bundle:
        """This bundle with the files of a later round; what was wanted of that and did not come says why."""
        failed = {name: Output("", missing=True, error=later.error) for name in names if later.error}
        return replace(self, files={**self.files, **failed, **later.files})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Bundle:
        """From an untrusted mapping, as Output.from_json."""
        files, error = data.get("files"), data.get("error")
        return cls(
            files={
                name: Output.from_json(value)
                for name, value in (files if isinstance(files, Mapping) else {}).items()
                if name in FILES and isinstance(value, Mapping)
            },
            error=single_line(error[:SAID])
            if isinstance(error, str)
            else ("the probe's answer is incomplete" if error else ""),
            collected=_number(data.get("collected")),
            seconds=_number(data.get("seconds")),
            received=_number(data.get("received")),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "files": {name: {"text": out.text, **out.status()} for name, out in self.files.items()},
            "error": self.error,
            "collected": self.collected,
            "seconds": self.seconds,
            "received": self.received,
        }

    def send(self, stream: BinaryIO, head: Mapping[str, Any]) -> None:
        """Write it for `receive`: a line of JSON that has `head` too, then the texts as they are. JSON would go through
        each of a fleet's millions of lines twice."""
        texts = [output.text.encode("utf-8", "surrogatepass") for output in self.files.values()]
        status = {name: output.status() for name, output in self.files.items()}
        line = {**head, "bundle": self.to_json() | {"files": status}, "bytes": list(map(len, texts))}
        stream.write(json.dumps(line).encode() + b"\n")
        stream.writelines(texts)

    @classmethod
    def receive(cls, stream: BinaryIO) -> tuple[Bundle, dict[str, Any]]:
        """What `send` has written, with its `head`."""
        head = json.loads(stream.readline())
        data, lengths = head.pop("bundle"), head.pop("bytes")
        files = {
            name: Output.from_json(status, stream.read(length).decode("utf-8", "surrogatepass"))
            for (name, status), length in zip(data.pop("files").items(), lengths, strict=True)
        }
        return cls.from_json(data)._with(files), head

    @classmethod
    def read(cls, directory: Path) -> Bundle:
        """Read a directory; files of other names are left alone, and what is no plain file of this directory (a link, a
        pipe, a directory) is not opened. GpuprovError if it is no readable directory."""
        if directory.is_file():
            raise GpuprovError(
                "a bundle is a directory, and this is a file", where=str(directory), hint="unpack it first"
            )
        if not directory.is_dir():
            raise GpuprovError(
                "not a bundle: no such directory",
                where=str(directory),
                hint="give the directory that holds nvidia-smi.xml, topo.txt, …",
            )
        try:
            status_text, _, unfit = _text(directory / STATUS)
            if unfit:
                raise GpuprovError(f"{STATUS} is {unfit}", where=str(directory), hint="copy the file itself")
            status = json.loads(status_text or "{}")
        except (ValueError, RecursionError) as error:
            raise GpuprovError(f"{STATUS} is not JSON: {error}", where=str(directory)) from error
        if not isinstance(status, dict):
            raise GpuprovError(f"{STATUS} holds no object", where=str(directory))
        known = status.get("files")
        known = known if isinstance(known, dict) else {}
        files: dict[str, Output] = {}
        for name in FILES:
            text, cut, unfit = _text(directory / name)
            entry = known.get(name)
            if text is not None or unfit:
                output = Output.from_json(entry if isinstance(entry, dict) else {}, text=text or "")
                files[name] = replace(output, truncated=output.truncated or cut, unfit=unfit)
            elif isinstance(entry, dict):
                files[name] = Output.from_json(entry, text="")
        return cls.from_json({**status, "files": {}})._with(files)

    def _with(self, files: dict[str, Output]) -> Bundle:
        return replace(self, files=files)

    def write(self, directory: Path) -> None:
        """Write the bundle into a directory of its own (0700, files 0600), each file whole or not at all."""
        private_dir(directory)
        for name, output in self.files.items():
            if output.text:
                write_whole(directory / name, output.text.encode("utf-8", "replace"))
        status = self.to_json() | {"files": {name: out.status() for name, out in self.files.items()}}
        write_whole(directory / STATUS, json.dumps(status, indent=1) + "\n")


def _number(value: Any) -> float | None:
    """A number that means something: JSON has true, NaN, Infinity and integers of any length."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < GREATEST:
        return None
    return float(value)


def _text(path: Path) -> tuple[str | None, bool, str]:
    """(content, was it cut, what it is where that is no plain file and has no content). A bundle comes from elsewhere:
    a link in it would show any file of this computer, and a pipe or a device may never end."""
    try:
        with regular_file.opened(path, follow_links=False) as stream:
            raw = stream.read(LIMIT + 1)
    except regular_file.UnfitFileError as error:
        return None, False, error.file_kind
    except FileNotFoundError:
        return None, False, ""
    except OSError as error:
        raise GpuprovError(f"cannot be read: {error.strerror}", where=str(path)) from error
    return _decoded(raw[:LIMIT]), len(raw) > LIMIT, ""


def _decoded(raw: bytes) -> str:
    """The text of a file that somebody may have saved elsewhere: with a byte order mark, or as UTF-16 (PowerShell)."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return raw.decode("utf-16", "replace")
    return raw.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace")
