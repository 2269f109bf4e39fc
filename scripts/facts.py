"""Renew what the package index tells: releases of PyTorch, their Pythons, NCCL and cuDNN of the newest; releases of
NCCL and the CUDA that each is published for.

    make facts            # changes {frameworks,nvidia}.yaml of provisioner/stack/data, shows the difference; commit it

The index is pip's own; `--index` names another one that answers <index>/<project>/json. Which CUDA a release was built
for no index tells: a release that is new gets the builds of the one before it, and its source says so.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import urllib.request
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from packaging.version import Version

DATA = Path(__file__).resolve().parents[1] / "provisioner/stack/data"
SINCE = Version("1.12")
SECTION = re.compile(r"^pytorch:\n(?:  #[^\n]*\n)*((?:  - \{[^\n]*\n)+)", re.MULTILINE)
NCCL = re.compile(r"^nccl:\n(?:  #[^\n]*\n)*((?:  - \{[^\n]*\n)+)", re.MULTILINE)
NCCL_WHEELS = {major: f"nvidia-nccl-cu{major}" for major in (11, 12, 13)}
"""CUDA major → the project whose wheels are for it."""
DEADLINE = 60


def main() -> int:
    """0 where nothing changed or the change was written; 1 with `--check` where there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--index", default=None, help="address of an index that answers <index>/<project>/json")
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 where something is new")
    options = parser.parse_args()
    index = options.index or pips_index()
    today, changed = datetime.now(UTC).date(), False
    for name, renew in (
        ("frameworks.yaml", lambda text: renewed(text, project(index, "torch"), today)),
        ("nvidia.yaml", lambda text: renewed_nccl(text, {k: project(index, v) for k, v in NCCL_WHEELS.items()}, today)),
    ):
        file = DATA / name
        current = file.read_text(encoding="utf-8")
        after = renew(current)
        sys.stdout.writelines(
            difflib.unified_diff(current.splitlines(True), after.splitlines(True), name, f"{name}, renewed")
        )
        changed = changed or after != current
        if not options.check:
            file.write_text(after, encoding="utf-8")
    return int(options.check and changed)


def pips_index() -> str:
    """The index that pip uses."""
    from pip._internal.models.index import PyPI

    return str(PyPI.pypi_url)


def project(index: str, name: str) -> dict[str, Any]:
    """What an index says of a project."""
    if not index.startswith(("https://", "http://127.0.0.1:")):
        raise SystemExit(f"{index}: the index has to be read over https")
    with urllib.request.urlopen(f"{index.rstrip('/')}/{name}/json", timeout=DEADLINE) as answer:  # noqa: S310 (above)
        document: dict[str, Any] = json.load(answer)
        return document


def renewed(text: str, torch: Mapping[str, Any], today: date) -> str:
    """The text of frameworks.yaml with the releases of `torch`; of those that it has, Python is corrected."""
    section = SECTION.search(text)
    if section is None:
        raise SystemExit(f"{DATA} has no rows of pytorch")
    rows = {match[1]: line for line in section[1].splitlines() if (match := re.search(r'version: "([^"]+)"', line))}
    newest, requirements = str(torch["info"]["version"]), requires(torch["info"].get("requires_dist") or [])
    for version in sorted(torch["releases"], key=Version):
        pythons = span(torch["releases"][version])
        if Version(version) < SINCE or Version(version).is_prerelease or not pythons:
            continue
        if version not in rows:
            last = max(rows, key=Version)
            read, taken = ("release, Python, NCCL and cuDNN", "builds") if version == newest else (
                "release and Python", "builds, NCCL and cuDNN")  # fmt: skip
            source = f"package index ({today}): {read}; {taken} as {last} (unverified)"
            row = rows[last].replace(f'version: "{last}"', f'version: "{version}"')
            rows[version] = re.sub(r'source: "[^"]*"', f'source: "{source}"', row)
        rows[version] = re.sub(r'python: "[^"]*"', f'python: "{pythons}"', rows[version])
    for key, value in requirements.items():
        if newest in rows and f'{key}: "' in rows[newest]:
            rows[newest] = re.sub(rf'\b{key}: "[^"]*"', f'{key}: "{value}"', rows[newest])
        elif newest in rows:
            rows[newest] = rows[newest].replace(", source:", f', {key}: "{value}", source:')
    return _with_rows(text, section, rows, today)


def renewed_nccl(text: str, wheels: Mapping[int, Mapping[str, Any]], today: date) -> str:
    """The text of nvidia.yaml with the releases of NCCL since the oldest that it has. `wheels`: CUDA major → what the
    index says of the project with the wheels for it. Of releases that it has, the CUDA majors are corrected."""
    section = NCCL.search(text)
    if section is None:
        raise SystemExit(f"{DATA / 'nvidia.yaml'} has no rows of nccl")
    rows = {match[1]: line for line in section[1].splitlines() if (match := re.search(r'version: "([^"]+)"', line))}
    oldest = min(map(Version, rows))
    majors: dict[str, list[int]] = {}
    dates: dict[str, str] = {}
    for major, project_document in wheels.items():
        for version, files in project_document["releases"].items():
            usable_wheels = [file for file in files if not file.get("yanked") and "x86_64" in file["filename"]]
            if not usable_wheels or not re.fullmatch(r"[0-9.]+", version) or Version(version) < oldest:
                continue
            majors.setdefault(version, []).append(major)
            first = min(str(wheel["upload_time"])[:10] for wheel in usable_wheels)
            dates[version] = min(dates.get(version, first), first)
    for version, known in majors.items():
        cuda = f'cuda: ">={min(known)},<{max(known) + 1}"'
        if version in rows:
            rows[version] = re.sub(r'cuda: "[^"]*"', cuda, rows[version])
            continue
        source = (
            f"releases of the wheels {', '.join(NCCL_WHEELS[cuda_major] for cuda_major in sorted(known))} ({today})"
        )
        rows[version] = (
            f'  - {{version: "{version}", released: "{dates[version]}", needs: {{{cuda}}}, source: "{source}"}}'
        )
    return _with_rows(text, section, rows, today)


def _with_rows(text: str, section: re.Match[str], rows: Mapping[str, str], today: date) -> str:
    """The text with these rows, and the day of that, where they are others."""
    body = "".join(f"{rows[version]}\n" for version in sorted(rows, key=Version))
    if body == section[1]:
        return text
    text = text[: section.start(1)] + body + text[section.end(1) :]
    return re.sub(r'^as_of: "[^"]*"', f'as_of: "{today}"', text, count=1, flags=re.MULTILINE)


def span(files: list[Mapping[str, Any]]) -> str:
    """The oldest and newest Python of a release's wheels for Linux on x86-64 ("3.9-3.13"); "" where it has none."""
    names = [str(f["filename"]) for f in files if not f.get("yanked")]
    versions = {
        (int(m[1]), int(m[2]))
        for name in names
        if "linux" in name and "x86_64" in name and (m := re.search(r"-cp(\d)(\d+)-cp", name))
    }
    return "{}.{}-{}.{}".format(*min(versions), *max(versions)) if versions else ""


def requires(lines: list[str]) -> dict[str, str]:
    """NCCL and cuDNN that a wheel asks for."""
    pins = {}
    for key, name in (("nccl", "nvidia-nccl"), ("cudnn", "nvidia-cudnn")):
        for line in lines:
            if match := re.match(rf"{name}-cu\d+\s*\(?==\s*([\d.]+)", line):
                pins[key] = match[1]
    return pins


if __name__ == "__main__":
    sys.exit(main())
