"""Faults of a whole site of a sandbox: what its cloud refuses while machines are made.

They are kept beside no run directory, because they are there before one is: in the cache, by the workspace of the site.
What is refused is said in the words of the site's own provider, so that all that reads them is tried with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioner.common import stored
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import cache, private_dir, write_whole
from provisioner.plan.models import PlannedGroup

MARK = "simulated refusal: "
"""Before a refusal's text (terraform/sandbox/node.sh)."""
BAD_DRIVER = "bad-driver-release"
TIMES = 2
"""So often in a row `throttled` refuses."""


@dataclass(frozen=True, slots=True)
class SiteFault:
    """`says`: which text of the provider's `sandbox` (errors.yaml) is given in place of machines, empty where they
    are made; `more`: NAME:MORE is taken, which is a zone or a version; what it then does, with {} for that."""

    name: str
    sentence: str
    says: str
    more: str = ""

    def told(self, detail: str) -> str:
        """What it does; `detail`: what was written behind its name."""
        return self.more.format(detail) if detail else self.sentence


FAULTS = (
    SiteFault(
        "no-capacity",
        "no zone has machines; no-capacity:ZONE: that zone has no machines",
        "shortage",
        "zone {} has no machines",
    ),
    SiteFault("quota", "the account may have no more machines in the way that a group asks for first", "quota"),
    SiteFault("throttled", f"the cloud is asked too often, {TIMES} times in a row", "throttled"),
    SiteFault("reservation-full", "reservations and blocks have no room", "reservation-full"),
    SiteFault(
        "bad-driver-release",
        "bad-driver-release:VERSION: on its machines one GPU offers half its memory with that one",
        "",
        "on its machines one GPU offers half its memory with driver {}",
    ),
    SiteFault("half-made", "of each group only the first half is made, then something is in the way", "conflict"),
)


def find(name: str) -> tuple[SiteFault, str] | None:
    """The fault of a site of that name, and its zone; None where it is none of a site. Raises GpuprovError for a zone
    that it does not take."""
    plain, _, zone = name.partition(":")
    match = next((fault for fault in FAULTS if fault.name == plain), None)
    if match is not None and zone and not match.more:
        raise GpuprovError(f"no fault {name!r}", hint=f"just {plain}")
    if match is not None and match.name == BAD_DRIVER and not zone:
        raise GpuprovError(f"{name}: which driver is bad?", hint=f"{name}:595.71.05")
    return None if match is None else (match, zone)


def active(workspace: Path) -> tuple[str, ...]:
    """The faults of a site, oldest first; none where there is no file, or it is damaged."""
    try:
        names = stored.load(_file(workspace))
    except (OSError, ValueError):
        return ()
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def inject(workspace: Path, name: str) -> None:
    """Have the site refuse so from now on."""
    _write(workspace, [*(other for other in active(workspace) if other != name), name])


def clear(workspace: Path, name: str | None = None) -> tuple[str, ...]:
    """Mend one fault of a site or all; gives those that were there."""
    present = active(workspace)
    cleared = tuple(fault_name for fault_name in present if name in (None, fault_name, fault_name.partition(":")[0]))
    if cleared:
        _write(workspace, [fault_name for fault_name in present if fault_name not in cleared])
    return cleared


def refused(
    faults: Sequence[str], group: PlannedGroup, kind: str, zone: str, retries: int, texts: Mapping[str, str]
) -> dict[str, str]:
    """Node → what is said in place of making it. `kind`, `zone`: how the group is asked for; `retries`: how often that
    was asked once more; `texts`: the provider's own words."""
    messages: dict[str, str] = {}
    for fault, only in filter(None, map(find, faults)):
        if not fault.says:
            continue
        reason = "spot-quota" if fault.says == "quota" and kind == "spot" else fault.says
        text = texts[reason].format(machine=group.machine.name, zone=zone)
        messages |= dict.fromkeys(_whom(fault, only, group, kind, zone, retries), MARK + text)
    return messages


def bad_driver(workspace: Path) -> str | None:
    """The release of the driver that is bad for the machines of a site; None where none is."""
    releases = [name.partition(":")[2] for name in active(workspace) if name.startswith(f"{BAD_DRIVER}:")]
    return releases[-1] if releases else None


def _whom(fault: SiteFault, only: str, group: PlannedGroup, kind: str, zone: str, retries: int) -> Iterator[str]:
    names = group.node_names()
    refuses = {
        "no-capacity": only in ("", zone) and kind in ("on-demand", "spot"),
        "quota": kind == group.spec.capacity.kind,
        "throttled": retries < TIMES,
        "reservation-full": kind in ("reservation", "block"),
        "half-made": True,
    }
    if refuses[fault.name]:
        yield from names[(len(names) + 1) // 2 :] if fault.name == "half-made" else names


def _file(workspace: Path) -> Path:
    folder = private_dir(private_dir(cache() / "sandbox") / "site-faults")
    return folder / f"{hashlib.sha256(str(workspace.absolute()).encode()).hexdigest()[:24]}.json"


def _write(workspace: Path, names: Sequence[str]) -> None:
    if names:
        write_whole(_file(workspace), json.dumps(list(names)) + "\n")
    else:
        _file(workspace).unlink(missing_ok=True)
