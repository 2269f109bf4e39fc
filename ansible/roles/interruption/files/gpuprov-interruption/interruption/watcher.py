"""The watcher: what was heard and done, in a record that lasts until the next boot."""

from __future__ import annotations

import json
import os
import time

from interruption.alicloud import ReleaseTime
from interruption.aws import BLOCK_S, SpotAction
from interruption.azure import ScheduledEvents
from interruption.hook import MOST_S, Hook
from interruption.metadata import Silent, seconds_of
from interruption.node import say, write
from interruption.tencent import TerminationTime

OTHERS = {"azure": ScheduledEvents, "tencent": TerminationTime, "alicloud": ReleaseTime}
"""Name of the service → what reads its notices; all others speak as Amazon's does."""


class Watcher:
    """What was heard and done. `state` is the record:

    {"silent_since": seconds or null, "silent": why, "notice": {"action", "time", "seen"} or null, "withdrawn": the
    notice that was taken back or null, "rebalance": {"time", "seen"} or null, "hook": {"notice", "began", "state":
    "running" | "ended", "result", "status", "output": [lines]} or null}; "result" is systemd's word for how it ended.
    """

    def __init__(self, options):
        self.options, self.ends = options, None
        if options.ends:
            try:
                seconds_of(options.ends)
                self.ends = options.ends
            except ValueError as error:
                say("--ends is ignored: {}".format(error))
        other = OTHERS.get(options.service)
        self.events = other(options.metadata) if other else SpotAction(options.metadata, self.ends)
        self.hook = Hook(options.node, options.hook, BLOCK_S if self.ends else MOST_S, self.save)
        self.state = {"silent_since": None, "silent": "", "notice": None, "withdrawn": None, "rebalance": None,
                      "hook": None}  # fmt: skip
        self.written = None
        try:
            with open(options.record, encoding="utf-8") as stream:
                record = json.load(stream)
            self.state.update({key: record[key] for key in self.state})
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            say("the record cannot be read and begins anew: {}".format(error))

    def look(self):
        """Ask once, write down what is new, act on it."""
        try:
            self._noticed(self.events.notice(self.state["notice"]))
            self._advised(self.events.advice() if isinstance(self.events, SpotAction) else None)
        except Silent as error:
            if self.state["silent_since"] is None:
                say("the metadata service does not answer: {}".format(error))
                self.state["silent_since"] = round(time.time(), 1)
            self.state["silent"] = str(error)
        else:
            if self.state["silent_since"] is not None:
                say("the metadata service answers again")
            self.state.update(silent_since=None, silent="")
        self.save()
        self.act()

    def _noticed(self, notice):
        old = self.state["notice"]
        if notice is None:
            if old is not None:
                say("the notice ({action} at {time}) was taken back".format(**old))
                self.state.update(notice=None, withdrawn=old)
        elif old is None or (old["action"], old["time"]) != (notice["action"], notice["time"]):
            current = time.time()
            remaining = seconds_of(notice["time"]) - current
            say("NOTICE: this machine: {} at {}, in {:.0f} s".format(notice["action"], notice["time"], remaining))
            self.state["notice"] = {"action": notice["action"], "time": notice["time"], "seen": round(current, 1)}

    def _advised(self, advised):
        old = self.state["rebalance"]
        if advised is None:
            self.state["rebalance"] = None
        elif old is None or old["time"] != advised:
            say("AWS recommends to move away from this machine (rebalance, {}): it may be taken soon".format(advised))
            self.state["rebalance"] = {"time": advised, "seen": round(time.time(), 1)}

    def act(self):
        """Run the hook for the pending notice, unless it was run for this one; go on waiting for one that runs."""
        notice, hook = self.state["notice"], self.state["hook"]
        if hook is not None and hook["state"] == "running":
            # A restart of this program: systemd knows whether it was started.
            known = self.hook.unit()
            if known.get("ActiveState") == "inactive" and known.get("Result") == "success":
                say("the hook had not been started yet")
                self.hook.start(hook)
            self.hook.wait(hook)
        if notice is None or not os.path.exists(self.options.hook):
            return
        name = "{action} {time}".format(**notice)
        if hook is not None and hook["notice"] == name:
            return
        self.hook.clear()
        hook = {"notice": name, "began": round(time.time(), 1), "state": "running", "result": None, "status": None,
                "output": []}  # fmt: skip
        self.state["hook"] = hook
        self.save()  # first: what is written here is not begun a second time
        self.hook.start(hook)
        self.hook.wait(hook)

    def save(self):
        """The record and the metrics, where they differ from what was written."""
        text = json.dumps(self.state, indent=1, sort_keys=True) + "\n"
        if text == self.written:
            return
        try:
            write(self.options.record, text)
            if self.options.textfile:
                write(self.options.textfile, self.metrics())
        except OSError as error:
            say("cannot write: {}".format(error))
            return
        self.written = text

    def metrics(self):
        """For node_exporter's textfile collector."""
        notice, hook = self.state["notice"], self.state["hook"]
        gauges = [("pending", "Whether the cloud has announced that it takes this machine", int(notice is not None))]
        if notice is not None:
            gauges.append(("timestamp_seconds", "When it does", int(seconds_of(notice["time"]))))
        if self.ends is not None:
            gauges.append(("block_end_timestamp_seconds", "When machines of its capacity block begin to be taken",
                           int(seconds_of(self.ends))))  # fmt: skip
        gauges.append(("rebalance", "Whether AWS recommends to move away", int(self.state["rebalance"] is not None)))
        gauges.append(("answered", "Whether the metadata service answers", int(self.state["silent_since"] is None)))
        if hook is not None and hook["state"] == "ended":
            gauges.append(("hook_ok", "Whether hooks.interrupted ended well", int(hook["result"] == "success")))
        rows = ("# HELP gpuprov_interruption_{0} {1}\n# TYPE gpuprov_interruption_{0} gauge\n"
                "gpuprov_interruption_{0} {2}\n".format(*gauge) for gauge in gauges)  # fmt: skip
        return "".join(rows)
