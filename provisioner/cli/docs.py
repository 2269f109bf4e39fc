"""`gpuprov docs`: the documentation of this very version, without a browser."""

from __future__ import annotations

from typing import Annotated

import typer


def docs(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="A page; the list without it.")] = None,
    heading: Annotated[
        str | None, typer.Argument(metavar="[HEADING]", help="Only the section with this heading, or a part of it.")
    ] = None,
) -> None:
    """Print a page of the documentation as Markdown, or list the pages."""
    from provisioner.common import manual

    if topic is None:
        pages = manual.topics()
        width = max(map(len, pages))
        for name, title in pages.items():
            typer.echo(f"{name:<{width}}  {title}")
        return
    text = manual.page(topic)
    typer.echo(manual.section(text, heading) if heading else text, nl=False)
