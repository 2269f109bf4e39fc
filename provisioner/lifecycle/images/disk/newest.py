"""What a distribution's archive has today of the packages that a builder's system is made of: apt chooses them as it
will for the build, from the same sources by the same keys. Nothing is installed."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from provisioner.common.errors import ProviderError
from provisioner.lifecycle.images.disk import base_system, tools

UPDATE_S, CHOOSE_S = 300.0, 60.0
_CHOSEN = re.compile(r"^Inst (\S+) (?:\[[^]]*\] )?\((\S+)", re.MULTILINE)
"""A row of `apt-get --simulate install`: Inst NAME [what is there] (VERSION origin [architecture])."""
_KERNEL = re.compile(r"linux-image-(?:unsigned-)?[0-9]")


@dataclass(frozen=True, slots=True)
class Packages:
    """Package → version, the kernel's own among them (linux-image-6.1.0-41-amd64)."""

    versions: dict[str, str]

    @property
    def identity(self) -> str:
        """The kernel by its package and version, and a digest of them all: an id as an image of a cloud has one."""
        kernel = next(f"{name}:{version}" for name, version in sorted(self.versions.items()) if _KERNEL.match(name))
        digest = hashlib.sha256(json.dumps(self.versions, sort_keys=True).encode()).hexdigest()[:12]
        return re.sub(r"[^A-Za-z0-9._:@-]", "-", f"{kernel}:{digest}")


def packages(system: str, mirror: str | None) -> Packages:
    """Ask the archive of a distribution, or a mirror in its place. Raises GpuprovError for a distribution that no
    builder is made of, ProviderError where the archive does not answer, or lacks a package."""
    archive = base_system.archive_of(system)
    with tempfile.TemporaryDirectory(prefix="gpuprov-archive-") as name:
        options = _options(Path(name), [_signed(line, archive.keyring) for line in archive.sources(mirror)])
        tools.run(["apt-get", *options, "--error-on=any", "update"], UPDATE_S)
        requested = ["?essential", "apt", archive.kernel, *base_system.COMMON]
        output = tools.run(
            ["apt-get", *options, "--simulate", "--no-install-recommends", "install", *requested], CHOOSE_S
        )
    chosen = Packages(dict(_CHOSEN.findall(output)))
    if not any(map(_KERNEL.match, chosen.versions)):
        raise ProviderError(f"apt chose no kernel for {archive.kernel}", where=archive.sources(mirror)[0])
    return chosen


def _signed(line: str, keyring: Path) -> str:
    """A line of sources.list(5) that is trusted by these keys alone."""
    kind, source = line.split(" ", 1)
    return f"{kind} [arch=amd64 signed-by={keyring}] {source}"


def _options(folder: Path, sources: list[str]) -> list[str]:
    """apt's folders below this one, with nothing of this computer's but its proxy (apt.conf)."""
    for subfolder in ("lists/partial", "cache/archives/partial"):
        (folder / subfolder).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text("\n".join(sources) + "\n", encoding="utf-8")
    settings = {
        "APT::Architecture": "amd64", "APT::Architectures": "amd64", "APT::Sandbox::User": "root",
        "Acquire::Languages": "none", "Acquire::Retries": "3", "Dir::State::lists": f"{folder}/lists/",
        "Dir::State::status": f"{folder}/status", "Dir::State::extended_states": f"{folder}/extended",
        "Dir::Cache": f"{folder}/cache/", "Dir::Etc::sourcelist": f"{folder}/sources.list",
        "Dir::Etc::sourceparts": "/dev/null", "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null", "Debug::NoLocking": "1",
    }  # fmt: skip
    return [argument for key, value in settings.items() for argument in ("-o", f"{key}={value}")]
