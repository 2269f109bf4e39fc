"""Hooks of mkdocs: what the site needs besides docs/ and mkdocs.yml.

- An entry of the navigation that ends with `/` stands for every page of that folder, its README.md first.
- A link out of docs/ becomes the path of its target in the repository: the site has no copy of the code.
- The search of a site on a disk takes docs/assets/file-worker.js, where the theme would fetch a script from a server.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
INDEX = "README.md"
FOREIGN_WORKER = "https://unpkg.com/iframe-worker/shim"
WORKER = "assets/file-worker.js"
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]*)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Replace the folders of the navigation by their pages."""
    config["nav"] = [expand(entry) for entry in config["nav"]]
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links out of docs/. Raises ValueError for a target that the repository does not have."""
    return without_outer_links(markdown, page.file.src_uri)


def on_post_build(config: Any) -> None:
    """Replace the one script that the theme has on another server by the site's own."""
    site = Path(config["site_dir"])
    for file in site.rglob("*.html"):
        folder = "/".join([".."] * (len(file.relative_to(site).parts) - 1)) or "."
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(FOREIGN_WORKER, f"{folder}/{WORKER}"), encoding="utf-8")


def expand(entry: Any) -> Any:
    """An entry of mkdocs.yml's navigation with the pages of its folders."""
    if isinstance(entry, dict):
        return {title: expand(target) for title, target in entry.items()}
    if isinstance(entry, list):
        return [expand(child) for child in entry]
    if not entry.endswith("/"):
        return entry
    files = sorted((DOCS / entry).glob("*.md"), key=lambda file: (file.name != INDEX, file.name))
    return [f"{entry}{file.name}" if file.name == INDEX else {file.stem: f"{entry}{file.name}"} for file in files]


def pages(entry: Any) -> Iterator[str]:
    """The pages of an expanded navigation, in its order: paths below docs/."""
    if isinstance(entry, str):
        yield entry
        return
    for child in entry.values() if isinstance(entry, dict) else entry:
        yield from pages(child)


def without_outer_links(markdown: str, source: str) -> str:
    """The text of the page `source` (a path below docs/) with links out of docs/ replaced."""

    def replace(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), match[2]))
        if target.startswith("docs/"):
            return match[0]
        if not (ROOT / target).exists():
            raise ValueError(f"docs/{source}: the repository has no {target}")
        text = match[1].strip("`")
        same = target.rstrip("/").endswith(text.rstrip("/")) or posixpath.dirname(target) == text.rstrip("/")
        return f"`{target}`" if same else f"{match[1]} (`{target}`)"

    return _LINK.sub(replace, markdown)
