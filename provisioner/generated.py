"""Tables of the documentation that are written from what the code knows, between two marks of their page."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Marks:
    """Where on a page a table stands: behind `<!-- NAME: begin -->`, before `<!-- NAME: end -->`."""

    page: Path
    name: str

    def placed(self, page: str, table: str) -> str:
        """The page's text with the table between the two marks."""
        begin, end = f"<!-- {self.name}: begin -->", f"<!-- {self.name}: end -->"
        before, rest = page.split(begin)
        return f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"

    def show(self, table: str) -> None:
        """Print the table; with --write put it into its page, in the project's directory."""
        if "--write" in sys.argv[1:]:
            self.page.write_text(self.placed(self.page.read_text(encoding="utf-8"), table), encoding="utf-8")
        else:
            sys.stdout.write(table + "\n")
