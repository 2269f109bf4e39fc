"""`maintenance:` of cluster.yaml: when nodes may be patched, cleaned and rebooted, and what of it is done."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field

from provisioner.spec.base import Model, Name

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
"""In the order of datetime.weekday()."""
Work = Literal["security", "clean", "reboot"]
_HOUR = "([01][0-9]|2[0-3]):[0-5][0-9]"


def _zone(name: str) -> str:
    """Raises ValueError for a name that is no time zone."""
    try:
        ZoneInfo(name)
    except (LookupError, OSError, ValueError) as error:
        raise ValueError(f"there is no time zone {name}") from error
    return name


def _hours(text: str) -> str:
    """Raises ValueError for hours that end when they begin."""
    begin, end = text.split("-")
    if begin == end:
        raise ValueError("the end is the beginning")
    return text


class Window(Model):
    """When nodes may be taken out of service for maintenance."""

    days: Annotated[tuple[Day, ...], Field(strict=False, min_length=1)] = Field(
        title="a list of days such as [sat, sun]",
        description="Days on which the window opens: mon, tue, wed, thu, fri, sat, sun",
        examples=[["sun"]],
    )
    hours: Annotated[str, Field(pattern=f"^{_HOUR}-{_HOUR}$"), AfterValidator(_hours)] = Field(
        title="hours such as 02:00-06:00",
        description="From when until when; 22:00-04:00 ends on the next day",
        examples=["02:00-06:00"],
    )
    zone: Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_zone)] = Field(
        title="a time zone such as Europe/Berlin or UTC",
        description="Time zone of days and hours, by its name in the IANA database",
        examples=["Europe/Berlin"],
    )

    def closes(self, moment: datetime) -> datetime | None:
        """When the window that is open at this moment (with a time zone) closes; None where none is open.

        >>> from datetime import UTC
        >>> night = Window(days=("sun",), hours="22:00-04:00", zone="UTC")
        >>> night.closes(datetime(2026, 11, 30, 3, 0, tzinfo=UTC)).isoformat()  # a Monday
        '2026-11-30T04:00:00+00:00'
        >>> night.closes(datetime(2026, 11, 30, 4, 0, tzinfo=UTC))
        """
        for days_ago in (0, 1):
            opened, closed = self._on(moment, -days_ago)
            if opened is not None and opened <= moment < closed:
                return closed
        return None

    def opens(self, moment: datetime) -> datetime:
        """When the next window after this moment opens."""
        openings = (self._on(moment, days)[0] for days in range(9))
        return next(opened for opened in openings if opened is not None and opened > moment)

    def _on(self, moment: datetime, days: int) -> tuple[datetime | None, datetime]:
        """Beginning and end of the window of a day, so many days after that of `moment`; no beginning where the day has
        none."""
        zone = ZoneInfo(self.zone)
        date = moment.astimezone(zone).date() + timedelta(days=days)
        begin, end = (time.fromisoformat(part) for part in self.hours.split("-"))
        closed = datetime.combine(date + timedelta(days=end < begin), end, zone)
        return (datetime.combine(date, begin, zone) if DAYS[date.weekday()] in self.days else None), closed


class Maintenance(Model):
    """What `gpuprov maintain` does, and when."""

    window: Window | None = Field(
        default=None,
        title="a block, or null",
        description="When it may be done. Null: never by itself; `gpuprov maintain --now` does it",
        examples=[{"days": ["sun"], "hours": "02:00-06:00", "zone": "Europe/Berlin"}],
    )
    work: Annotated[tuple[Work, ...], Field(strict=False, min_length=1)] = Field(
        default=("security", "clean", "reboot"),
        title="a list of security, clean and reboot",
        description="security: the distribution's security updates, without kernels and packages of the lock; clean: "
        "caches, old journals and dumps, unused containers and images; reboot: where one is due",
        examples=[["security", "clean"]],
    )
    groups: Annotated[tuple[Name, ...], Field(strict=False)] = Field(
        default=(),
        title="a list of groups",
        description="Groups whose nodes are maintained; empty: all",
        examples=[["train"]],
    )
    batch: Annotated[str, Field(pattern=r"^(100|[1-9][0-9]?)%$")] | Annotated[int, Field(ge=1)] = Field(
        default="25%",
        title="a number of nodes or a percentage such as 25%",
        description="Nodes that are maintained at once after the canaries: a number, or a percentage of those that "
        "need it; never more than `quarantine` lets be out of service",
        examples=["25%", 4],
    )
    canary: int = Field(
        default=1, ge=1, le=100, title="a whole number", description="Nodes of each group that are maintained first"
    )
    keep_days: int = Field(
        default=30,
        ge=1,
        le=3650,
        title="a whole number of days",
        description="Age from which `clean` removes journals, core dumps and stopped containers, days",
    )
    uptime_days: Annotated[int, Field(ge=1, le=3650)] | None = Field(
        default=None,
        title="a whole number of days, or null",
        description="Uptime from which a reboot is due, days. Null: uptime alone is no reason",
        examples=[90],
    )
