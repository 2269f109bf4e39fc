"""Debian packages written directly: no build tree, no subprocess, the same bytes every time."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field

EPOCH = 1_600_000_000
"""Time stamp of every file in a package (2020-09-13), so that the same content is the same file."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of a package or a layer. `link` makes it a symbolic link, and the content is then empty."""

    content: bytes = b""
    mode: int = 0o644
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Deb:
    """One binary package. `fields` are further control fields; `scripts` are postinst, prerm…"""

    name: str
    version: str
    architecture: str
    description: str
    files: Mapping[str, File] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)

    @property
    def filename(self) -> str:
        """Name in a pool. apt does not care; the colon of an epoch is left out because URLs do."""
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb".replace("%", "_")

    def control(self) -> str:
        """The control paragraph, without what only the index knows (Filename, Size, hashes)."""
        size = max(1, sum(len(f.content) for f in self.files.values()) // 1024)
        lines = {
            "Package": self.name,
            "Version": self.version,
            "Architecture": self.architecture,
            "Maintainer": "gpuprov sandbox <sandbox@gpuprov.internal>",
            "Installed-Size": str(size),
            **self.fields,
            "Section": "non-free/misc",
            "Priority": "optional",
            "Description": f"{self.description} (simulated by gpuprov)\n"
            " This is no software of NVIDIA or another vendor: "
            "it is a simulation\n for gpuprov's sandbox on machines without GPUs.",
        }
        return "".join(f"{key}: {value}\n" for key, value in lines.items())

    def build(self) -> bytes:
        """The .deb file."""
        scripts = {name: File(text.encode(), 0o755) for name, text in self.scripts.items()}
        control = {"control": File(self.control().encode()), **scripts}
        conffiles = [f"/{path}" for path in self.files if path.startswith("etc/")]
        if conffiles:
            control["conffiles"] = File(("\n".join(conffiles) + "\n").encode())
        members = (
            ("debian-binary", b"2.0\n"),
            ("control.tar.gz", tar_gz(control)),
            ("data.tar.gz", tar_gz(self.files)),
        )
        return b"!<arch>\n" + b"".join(_ar_member(name, content) for name, content in members)


def _ar_member(name: str, content: bytes) -> bytes:
    header = f"{name:<16}{EPOCH:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n"
    return header.encode() + content + (b"\n" if len(content) % 2 else b"")


def tar(files: Mapping[str, File]) -> bytes:
    """A tar archive of the files with their parent directories, everything owned by root."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        added: set[str] = set()
        for path in sorted(files):
            parts = path.split("/")[:-1]
            for depth in range(1, len(parts) + 1):
                parent = "/".join(parts[:depth])
                if parent not in added:
                    added.add(parent)
                    archive.addfile(_info(f"./{parent}", 0o755, tarfile.DIRTYPE))
            file = files[path]
            info = _info(f"./{path}", file.mode, tarfile.SYMTYPE if file.link is not None else tarfile.REGTYPE)
            info.linkname = file.link or ""
            info.size = 0 if file.link is not None else len(file.content)
            archive.addfile(info, io.BytesIO(file.content))
    return buffer.getvalue()


def tar_gz(files: Mapping[str, File]) -> bytes:
    """The same, compressed, without a time stamp in it."""
    return gzip.compress(tar(files), compresslevel=6, mtime=0)


def _info(name: str, mode: int, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.type, info.mtime = mode, kind, EPOCH
    info.uname = info.gname = "root"
    return info
