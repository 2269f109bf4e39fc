"""`apt-config dump`: what unattended-upgrades may do."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.tool import Tool
from provisioner.verify.watch import TooLong, limited

MATCH_S = 0.1
"""Seconds of a processor for one package: usual expressions take microseconds."""

_LINE = re.compile(r'^([A-Za-z0-9:._/+-]+?)(?:::)? "(.*)";$')


@dataclass(frozen=True, slots=True)
class Unattended:
    """`periodic` is whether apt's timer may start it; `blacklist` the regular expressions of packages that it leaves
    alone."""

    periodic: bool
    blacklist: tuple[str, ...] = ()

    def spares(self, package: str) -> bool:
        """Whether it leaves this package alone: an expression matches at the start of the name, as in Python's
        re.match (apt.systemd.daily's own rule). One that is no regular expression, or does not end, matches nothing:
        they are the node's."""
        try:
            with limited(MATCH_S):
                return any(_matches(pattern, package) for pattern in self.blacklist)
        except TooLong:
            return False


def _matches(pattern: str, package: str) -> bool:
    try:
        return re.match(pattern, package) is not None
    except (re.error, RecursionError, OverflowError):
        return False


def parse(text: str) -> Unattended:
    """The effective configuration, all files of apt.conf.d together."""
    values = [(m[1], m[2]) for line in lines(text) if (m := _LINE.match(line))]
    if not values:
        raise Unreadable(f"not a configuration of apt: {first_line(text)}")
    periodic = [value for key, value in values if key == "APT::Periodic::Unattended-Upgrade"]
    blacklist = tuple(value for key, value in values if key == "Unattended-Upgrade::Package-Blacklist" and value)
    return Unattended(bool(periodic) and periodic[-1] not in ("0", ""), blacklist)


TOOLS = (
    Tool(
        file="unattended.txt",
        field="unattended",
        parse=parse,
        command=("apt-config", "dump"),
        seconds=10,
        configured=True,
    ),
)
