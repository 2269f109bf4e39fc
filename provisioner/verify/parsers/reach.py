"""reach.json: whether the node reaches what its packages and images come from, and how long their names take."""

from __future__ import annotations

from dataclasses import dataclass

from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.parsers.untrusted import read_float, read_map, read_object, read_text, read_whole
from provisioner.verify.tool import Tool


@dataclass(frozen=True, slots=True)
class Reach:
    """One address. `status` of HTTP, None where none came, and then `error` says why. Seconds."""

    address: str
    status: int | None
    seconds: float | None
    resolve_seconds: float | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Reached:
    """`proxy`: apt goes through one, so that the addresses need not answer the node itself."""

    addresses: tuple[Reach, ...]
    proxy: bool = False


def parse(text: str) -> Reached:
    document = read_object(text)
    if not isinstance(document.get("addresses"), dict):
        raise Unreadable(f"no addresses in it: {first_line(text)}")
    rows = {name: read_map(row) for name, row in sorted(read_map(document["addresses"]).items())}
    return Reached(
        tuple(
            Reach(
                name[:300],
                read_whole(row.get("status")),
                read_float(row.get("seconds")),
                read_float(row.get("resolve_seconds")),
                (read_text(row.get("error")) or "")[:200],
            )
            for name, row in rows.items()
        ),
        document.get("proxy") is True,
    )


TOOLS = (
    Tool(
        file="reach.json",
        field="reach",
        parse=parse,
        asked="load",
        label="HEAD of the lock's repositories and registries",
        by_hand=False,
    ),
)
