"""The page of the nights: what changed, what failed, what is in which channel."""

from __future__ import annotations

from pathlib import Path

from provisioner.common import paths
from provisioner.common.paths import private_dir, write_whole
from provisioner.lifecycle.images import manifest as manifests
from provisioner.lifecycle.images import vulnerabilities
from provisioner.lifecycle.images.book import CHANNELS
from provisioner.lifecycle.images.recipe import Recipe

NIGHTS = 60
"""So many are shown, newest first."""
MOST = 200
"""Differences of one build that are shown."""


def write(recipe: Recipe) -> Path:
    """Write nights.html beside the builds; its path."""
    file = private_dir(recipe.book.folder) / "nights.html"
    write_whole(file, html(recipe), mode=0o644)
    return file


def html(recipe: Recipe) -> str:
    """The page as a text; it needs no network and no script."""
    import jinja2  # not for `image list`

    book = recipe.book
    builds, channels = book.builds(), book.channels()
    previous = dict(zip(builds[1:], builds, strict=False))
    rows = []
    for night in reversed(book.told_nights()[-NIGHTS:]):
        build = str(night.get("build", ""))
        available = build in builds and night.get("outcome") == "built"
        compared = (previous.get(build), build) if available else (None, build)
        differs = manifests.differences(*(book.manifest(reference) for reference in compared)) if compared[0] else []  # type: ignore[arg-type]
        rows.append(
            {
                **night,
                "channels": [name for name in CHANNELS if available and channels.get(name) == build],
                "differences": differs[:MOST],
                "more": max(0, len(differs) - MOST),
                "vulnerabilities": [
                    f"{name}: {vulnerabilities.summary_line(target.vulnerabilities, target.not_scanned)}"
                    for name, target in (book.manifest(build).targets.items() if available else ())
                ],
                "proofs": [
                    (f"builds/{build}/{Path(proof.report).with_suffix('.html')}", f"{name} boot {number}")
                    for name, target in (book.manifest(build).targets.items() if available else ())
                    for number, proof in enumerate(target.proofs, 1)
                ],
            }
        )
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, autoescape=True,
        loader=jinja2.FileSystemLoader(paths.data("templates")),
    )  # fmt: skip
    return environment.get_template("nights.html.j2").render(
        name=recipe.name, simulated=recipe.sandbox, channels=[(name, channels.get(name, "")) for name in CHANNELS],
        nights=rows, history=list(reversed(book.history()))[:NIGHTS],
    )  # fmt: skip
