"""Tencent Cloud's notices: when a spot machine goes, on a page of its own."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from interruption import metadata
from interruption.metadata import Silent, fetch, utc

NOTICE = "/latest/meta-data/spot/termination-time"
"""Not there until the machine is to go. https://tencentcloud.com/document/product/213/32487"""
ZONE = timezone(timedelta(hours=8))
"""Of the time there, which names none."""


class TerminationTime:
    """When Tencent Cloud takes this machine, told at HOST:PORT."""

    def __init__(self, address):
        self.address = address

    def notice(self, old):
        """The notice that stands; None where there is none. Raises Silent."""
        status, text = fetch(self.address, "GET", NOTICE, {}, metadata.ANSWER_S)
        text = text.strip()
        if status == 404:
            return None
        if status != 200:
            raise Silent("{} is answered with status {}".format(NOTICE, status))
        try:
            when = utc(datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=ZONE))
        except (ValueError, OverflowError) as error:
            raise Silent("{} says {!r}, which is no time".format(NOTICE, text[:120])) from error
        return {"action": "terminate", "time": when}
