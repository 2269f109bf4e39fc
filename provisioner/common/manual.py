"""The pages of docs/, which every installation has: `gpuprov docs` prints them, and messages name them by `see`."""

from __future__ import annotations

import re
from pathlib import Path

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import data
from provisioner.common.suggest import did_you_mean

_HEADING = re.compile(r"^(#{1,6}) (.+)$")
_FENCE = re.compile(r"^(```|~~~)")


def see(topic: str, heading: str = "") -> str:
    """How messages name a page, or a section of it. There is no site of gpuprov's documentation that could be linked.

    >>> see("aws"), see("runbook", "gpu.count")
    ('`gpuprov docs aws`', '`gpuprov docs runbook "gpu.count"`')
    """
    return f"`gpuprov docs {topic}" + (f' "{heading}"`' if heading else "`")


def topics() -> dict[str, str]:
    """Each page's topic and its title, in the order of their names."""
    root = data("docs")
    files = sorted(root.rglob("*.md"))
    return {_topic(file, root): _title(file) for file in files}


def page(topic: str) -> str:
    """The Markdown of a page. Raises GpuprovError for a topic that there is not."""
    root, known = data("docs"), topics()
    name = topic.removesuffix(".md").removeprefix("docs/")
    if name not in known:
        hint = did_you_mean(name, known, limit=3) or "`gpuprov docs` lists the pages"
        raise GpuprovError(f"there is no page {topic}", hint=hint)
    return next(file for file in root.rglob("*.md") if _topic(file, root) == name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """The section of a page whose heading is this one, else begins with it or has it, with the sections below it.
    Raises GpuprovError where there is none."""
    wanted, headings = heading.casefold(), list[tuple[int, int, str]]()
    lines, fenced = text.splitlines(), False
    for number, line in enumerate(lines):
        fenced ^= _FENCE.match(line) is not None
        if not fenced and (match := _HEADING.match(line)):
            headings.append((number, len(match[1]), match[2]))
    plain = [title.casefold() for _, _, title in headings]
    tests = (lambda title: title == wanted, lambda title: title.startswith(wanted), lambda title: wanted in title)
    chosen = next((index for test in tests for index, title in enumerate(plain) if test(title)), None)
    if chosen is None:
        names = [title for _, _, title in headings]
        hint = did_you_mean(heading, names, limit=3) or f"headings: {'; '.join(names[:20])}"
        raise GpuprovError(f"the page has no heading {heading!r}", hint=hint)
    first, depth, _ = headings[chosen]
    ends = (number for number, level, _ in headings[chosen + 1 :] if level <= depth)
    return "\n".join(lines[first : next(ends, len(lines))]).rstrip() + "\n"


def _topic(file: Path, root: Path) -> str:
    return file.relative_to(root).with_suffix("").as_posix().removesuffix("/README")


def _title(file: Path) -> str:
    return next((line[2:] for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("# ")), "")
