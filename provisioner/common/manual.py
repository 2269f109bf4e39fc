"""The pages of docs/, which every installation has: `gpuprov docs` prints them, and messages name them by `see`."""

from __future__ import annotations

import re
from pathlib import Path

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import data
from provisioner.common.suggest import did_you_mean

_HEADING = re.compile(r"^(#{1,6}) (.+)$")
_FENCE = re.compile(r"^(```|~~~)")
INDEX = "README"
SECTIONS = ("start", "concepts", "guides", "reference", "design")
"""Folders of docs/ that a topic leaves out: docs/guides/aws.md is `gpuprov docs aws`."""


def see(topic: str, heading: str = "") -> str:
    """How messages name a page, or a section of it. No public site has the pages, so a message cannot link one.

    >>> see("aws"), see("runbook", "gpu.count")
    ('`gpuprov docs aws`', '`gpuprov docs runbook "gpu.count"`')
    """
    return f"`gpuprov docs {topic}" + (f' "{heading}"`' if heading else "`")


def topics() -> dict[str, str]:
    """Each page's topic and its title, in the order of their names. The parts of a page in parts are not listed."""
    root = data("docs")
    files = sorted(root.rglob("*.md"), key=lambda file: _topic(file, root))
    return {_topic(file, root): _title(file) for file in files if not _is_part(file, root)}


def page(topic: str) -> str:
    """The Markdown of a page, with its parts where it has some. A path below docs/ names it as well as its topic.
    Raises GpuprovError for a topic that there is not."""
    root = data("docs")
    files = {_topic(file, root): file for file in sorted(root.rglob("*.md"))}
    paths = {file.relative_to(root).with_suffix("").as_posix(): file for file in files.values()}
    name = topic.removesuffix(".md").removeprefix("docs/")
    file = files.get(name) or paths.get(name)
    if file is None:
        hint = did_you_mean(name, topics(), limit=3) or "`gpuprov docs` lists the pages"
        raise GpuprovError(f"there is no page {topic}", hint=hint)
    parts = sorted(part for part in file.parent.glob("*.md") if file.stem == INDEX and _is_part(part, root))
    return "\n".join(part.read_text(encoding="utf-8") for part in (file, *parts))


def section(text: str, heading: str) -> str:
    """The section of a page whose heading is this one, else begins with it or has it, with the sections below it.
    Raises GpuprovError where there is none."""
    folded_heading, headings = heading.casefold(), list[tuple[int, int, str]]()
    lines, fenced = text.splitlines(), False
    for number, line in enumerate(lines):
        fenced ^= _FENCE.match(line) is not None
        if not fenced and (match := _HEADING.match(line)):
            headings.append((number, len(match[1]), match[2]))
    plain = [title.casefold() for _, _, title in headings]
    tests = (
        lambda title: title == folded_heading,
        lambda title: title.startswith(folded_heading),
        lambda title: folded_heading in title,
    )
    chosen = next((index for test in tests for index, title in enumerate(plain) if test(title)), None)
    if chosen is None:
        names = [title for _, _, title in headings]
        hint = did_you_mean(heading, names, limit=3) or f"headings: {'; '.join(names[:20])}"
        raise GpuprovError(f"the page has no heading {heading!r}", hint=hint)
    first, depth, _ = headings[chosen]
    ends = (number for number, level, _ in headings[chosen + 1 :] if level <= depth)
    return "\n".join(lines[first : next(ends, len(lines))]).rstrip() + "\n"


def _topic(file: Path, root: Path) -> str:
    path = file.relative_to(root).with_suffix("").as_posix().removesuffix(f"/{INDEX}")
    section, _, name = path.partition("/")
    return name if section in SECTIONS and name else path


def _is_part(file: Path, root: Path) -> bool:
    """Whether a page belongs to the README.md beside it: docs/reference/runbook/gpu.md to the runbook."""
    return len(file.relative_to(root).parts) == 3 and file.stem != INDEX


def _title(file: Path) -> str:
    return next((line[2:] for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("# ")), "")
