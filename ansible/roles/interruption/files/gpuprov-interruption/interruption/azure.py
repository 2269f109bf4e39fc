"""Azure's notices: half a minute before a spot machine goes, and of maintenance, by Scheduled Events."""

from __future__ import annotations

import json
import time
from email.utils import parsedate_to_datetime

from interruption.metadata import Silent, fetch, utc

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
FIRST_ANSWER_S = 30.0
"""Azure's first answer may take two minutes: the service is turned on by being asked. Systemd's watchdog waits 60 s.
https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events"""
TAKES = ("Preempt", "Terminate", "Redeploy", "Reboot")
"""Events after which what runs on the machine is gone; Freeze is a pause of seconds."""


class ScheduledEvents:
    """Azure's Scheduled Events at HOST:PORT. In an availability set each machine hears of all: its own are those that
    name it."""

    def __init__(self, address):
        self.address, self.name = address, None

    def notice(self, old):
        """The first event that takes this machine, as a notice; None where there is none. `old`: the notice that stood
        before: an event that has begun has no time any more. Raises Silent."""
        if self.name is None:
            self.name = self._get(NAME).strip().lower() or None
        if self.name is None:
            raise Silent("{} says no name".format(NAME))
        path, takings = EVENTS, []
        try:
            for event in json.loads(self._get(path))["Events"]:
                if event["EventType"] in TAKES and self.name in [name.lower() for name in event["Resources"]]:
                    takings.append((event["EventType"].lower(), event.get("NotBefore") or ""))
            times = [(self._time(action, when, old), action) for action, when in takings]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise Silent("{} says what is no list of events: {!r}".format(path, str(error)[:120])) from error
        return {"action": min(times)[1], "time": min(times)[0]} if times else None

    @staticmethod
    def _time(action, when, old):
        """Such as 2026-11-21T22:10:00Z, of "Mon, 19 Sep 2016 18:29:47 GMT". Raises ValueError, TypeError,
        OverflowError."""
        if not when:
            return (
                old["time"] if old and old["action"] == action else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            )
        return utc(parsedate_to_datetime(when))

    def _get(self, path):
        status, text = fetch(self.address, "GET", path, {"Metadata": "true"}, FIRST_ANSWER_S, 1 << 20)
        if status != 200:
            raise Silent("{} is answered with status {}".format(path, status))
        return text
