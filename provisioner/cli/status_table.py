"""The nodes of a `status` document as a table, for `status` and for `status --watch`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from provisioner.output.status import StatusOutput


def table(document: StatusOutput, *, offline: bool) -> Table:
    """The nodes of a `status` document, a row each."""
    from rich.table import Table

    simulated = " (simulated hardware)" if document.sandbox else ""
    rendered = Table(title=f"{document.cluster}{simulated}", title_justify="left", box=None, pad_edge=False)
    # In a terminal the one site of all goes without saying: the columns are for what can't be broken.
    several = len({node.site for node in document.nodes}) > 1 or not sys.stdout.isatty()
    columns = ["node", "machine", *(["site"] if several else []), "address", "stage", "healthy", "driver", "as locked"]
    for column in columns:
        rendered.add_column(column, overflow="fold", no_wrap=column != "as locked")
    for node in document.nodes:
        verdict = {True: "yes", False: "NO", None: "-"}[node.ok]
        drift = "-" if not node.address or offline else "?" if node.drift is None else "NO"
        rendered.add_row(
            node.name, node.machine, *([node.site] if several else []), node.address or "-", node.stage,
            verdict, node.driver or "-", "yes" if node.drift == [] else drift,
        )  # fmt: skip
    return rendered
