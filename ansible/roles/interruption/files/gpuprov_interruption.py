#!/usr/bin/python3
"""Hears that the cloud takes this machine away, writes it down, and runs the hook, once for each notice.

    gpuprov_interruption.py --node train-0 --record /run/gpuprov/interruption.json --hook /etc/gpuprov/interrupted

A spot machine of Amazon's is told so two minutes before; one of Azure's half a minute before, by the same service as
of maintenance (--service azure: Scheduled Events); one of Tencent Cloud's by a page of its own (--service tencent), and
one of Alibaba Cloud's about five minutes before (--service alicloud).
When a capacity block of Amazon's ends is known from the start (--ends): nobody tells
the machine, so that counts as a notice ten minutes before, when Amazon's own warning is sent to the account.

Standard library only, Python 3.8 or newer; role interruption makes a service of it. It asks the instance metadata service
(tokens, IMDSv2) every few seconds, as AWS recommends. The hook runs as a unit of its own, gpuprov-interrupted.service, so
that it outlives a restart of this program, and systemd ends it 20 s before the machine goes. What was heard and done is
in the record, which lasts until the next boot: a restart repeats nothing and loses nothing.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime

TOKEN = "/latest/api/token"
NOTICE = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
TOKEN_S = 21600
"""How long a token is good for: AWS's most, six hours."""
ANSWER_S = 2.0
"""Deadline of one question. The service is on the machine's own host and answers in milliseconds."""
RESERVE_S = 20
"""Left between the hook's end and the machine's."""
MOST_S, LEAST_S = 100, 5
"""Seconds that a hook has: two minutes less the reserve; a notice that comes late still gets the least."""
BLOCK_S = 600
"""How long before a block's machines are taken the notice is given.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html (Capacity Block Expiration Warning)"""
STOPPED_S = 3
"""After which a hook that systemd does not have as running was stopped by somebody."""
UNIT = "gpuprov-interrupted.service"
PLAIN = re.compile(r"[a-z][a-z-]{0,31}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
LINES = 20
"""Of the hook's output, in the record; the journal has all."""


AZURE_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
AZURE_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
AZURE_S = 30.0
"""Azure's first answer may take two minutes: the service is turned on by being asked. Systemd's watchdog waits 60 s.
https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events"""
AZURE_TAKES = ("Preempt", "Terminate", "Redeploy", "Reboot")
"""Events after which what runs on the machine is gone; Freeze is a pause of seconds."""


TENCENT_NOTICE = "/latest/meta-data/spot/termination-time"
"""Not there until the machine is to go. https://tencentcloud.com/document/product/213/32487"""
TENCENT_ZONE = timezone(timedelta(hours=8))
"""Of the time there, which names none."""
ALICLOUD_NOTICE = "/latest/meta-data/instance/spot/termination-time"
"""Not there, or empty, until the machine is to go; a time in UTC. https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata"""


class Silent(Exception):
    """The metadata service did not answer, or not as it should."""


def say(text):
    print(text, flush=True)


def seconds_of(text):
    """Seconds since 1970 of a time such as 2026-11-21T22:10:00Z. Raises ValueError for anything else."""
    if not isinstance(text, str) or not TIME.fullmatch(text):
        raise ValueError("no time: {!r}".format(text))
    return datetime.strptime(text[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()


def utc(when):
    """A moment as 2026-11-21T22:10:00Z; its year with four digits, which strftime does not see to. Raises OverflowError
    for one that the calendar of UTC has not."""
    return when.astimezone(timezone.utc).replace(microsecond=0, tzinfo=None).isoformat() + "Z"


def fetch(address, method, path, headers, within, most=65536):
    """Status and text of the answer, all of which has to come `within` so many seconds. Raises Silent."""
    connection, began, late, timer = http.client.HTTPConnection(address, timeout=within), time.monotonic(), [], None
    try:
        connection.connect()
        held = connection.sock  # an answer that ends with its connection takes it along

        def end():
            late.append(True)
            with suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(max(0.0, began + within - time.monotonic()), end)
        timer.daemon = True
        timer.start()
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        text = answer.read(most).decode("utf-8", "replace")
        if late:
            raise TimeoutError("timed out")
        return answer.status, text
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = "timed out" if late else str(error) or type(error).__name__
        raise Silent("{} {}: {}".format(method, path, why)) from error
    finally:
        if timer is not None:
            timer.cancel()
        connection.close()


class Metadata:
    """The metadata service at HOST:PORT; `header` has the token."""

    def __init__(self, address, header="X-aws-ec2-metadata-token"):
        self.address, self.token, self.good_until, self.header = address, None, 0.0, header

    def ask(self, path):
        """What is said at that path; None for "there is none" (404). Raises Silent."""
        status, text = self._call("GET", path, self._header())
        if status in (401, 403):  # an expired token, or the service has forgotten it
            self.token = None
            status, text = self._call("GET", path, self._header())
        if status not in (200, 404):
            raise Silent("{} is answered with status {}".format(path, status))
        return text if status == 200 else None

    def _header(self):
        if self.token is None or time.monotonic() > self.good_until:
            wanted = {self.header + "-ttl-seconds": str(TOKEN_S)}
            status, text = self._call("PUT", TOKEN, wanted)
            if status != 200 or not re.fullmatch(r"[\x21-\x7e]{1,4096}", text.strip()):
                raise Silent("no token: status {}".format(status))
            self.token, self.good_until = text.strip(), time.monotonic() + TOKEN_S / 2
        return {self.header: self.token}

    def _call(self, method, path, headers):
        return fetch(self.address, method, path, headers, ANSWER_S)


class ScheduledEvents:
    """Azure's Scheduled Events at HOST:PORT. In an availability set each machine hears of all: its own are those that
    name it."""

    def __init__(self, address):
        self.address, self.name = address, None

    def notice(self, old):
        """The first event that takes this machine, as a notice; None where there is none. `old`: the notice that stood
        before: an event that has begun has no time any more. Raises Silent."""
        if self.name is None:
            self.name = self._get(AZURE_NAME).strip().lower() or None
        if self.name is None:
            raise Silent("{} says no name".format(AZURE_NAME))
        path, found = AZURE_EVENTS, []
        try:
            for event in json.loads(self._get(path))["Events"]:
                if event["EventType"] in AZURE_TAKES and self.name in [name.lower() for name in event["Resources"]]:
                    found.append((event["EventType"].lower(), event.get("NotBefore") or ""))
            times = [(self._time(action, when, old), action) for action, when in found]
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
        status, text = fetch(self.address, "GET", path, {"Metadata": "true"}, AZURE_S, 1 << 20)
        if status != 200:
            raise Silent("{} is answered with status {}".format(path, status))
        return text


class TerminationTime:
    """When Tencent Cloud takes this machine, told at HOST:PORT."""

    def __init__(self, address):
        self.address = address

    def notice(self, old):
        """The notice that stands; None where there is none. Raises Silent."""
        status, text = fetch(self.address, "GET", TENCENT_NOTICE, {}, ANSWER_S)
        text = text.strip()
        if status == 404:
            return None
        if status != 200:
            raise Silent("{} is answered with status {}".format(TENCENT_NOTICE, status))
        try:
            when = utc(datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=TENCENT_ZONE))
        except (ValueError, OverflowError) as error:
            raise Silent("{} says {!r}, which is no time".format(TENCENT_NOTICE, text[:120])) from error
        return {"action": "terminate", "time": when}


class ReleaseTime:
    """When Alibaba Cloud releases this machine, told at HOST:PORT."""

    def __init__(self, address):
        self.metadata = Metadata(address, "X-aliyun-ecs-metadata-token")

    def notice(self, old):
        """The notice that stands; None where there is none. Raises Silent."""
        text = (self.metadata.ask(ALICLOUD_NOTICE) or "").strip()
        if not text:
            return None
        try:
            seconds_of(text)
        except ValueError as error:
            raise Silent("{} says {!r}, which is no time".format(ALICLOUD_NOTICE, text[:120])) from error
        return {"action": "terminate", "time": text}


def document(text, path, key):
    """The JSON object of an answer that must have a time under that key. Raises Silent."""
    try:
        found = json.loads(text)
        seconds_of(found[key])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Silent("{} says {!r}, which is no such notice".format(path, text[:120])) from error
    return found


def write(path, text):
    """Whole or not at all, readable by everybody."""
    handle, fresh = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".gpuprov-")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
        os.chmod(fresh, 0o644)
        os.replace(fresh, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(fresh)
        raise


def notify(text):
    """Tell systemd, where it listens (sd_notify(3))."""
    place = os.environ.get("NOTIFY_SOCKET")
    if place:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.sendto(text.encode(), "\0" + place[1:] if place[0] == "@" else place)


def run(*words, timeout=15):
    """Exit status and everything that a command said; 124 where it did not end, 127 where it could not start."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=timeout, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return 124, "no end after {} s".format(timeout)
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace").strip()


class Watcher:
    """What was heard and done. `state` is the record:

    {"silent_since": seconds or null, "silent": why, "notice": {"action", "time", "seen"} or null, "withdrawn": the
    notice that was taken back or null, "rebalance": {"time", "seen"} or null, "hook": {"notice", "began", "state":
    "running" | "ended", "result", "status", "output": [lines]} or null}; "result" is systemd's word for how it ended.
    """

    def __init__(self, options):
        self.options, self.metadata = options, Metadata(options.metadata)
        others = {"azure": ScheduledEvents, "tencent": TerminationTime, "alicloud": ReleaseTime}
        self.events = others[options.service](options.metadata) if options.service in others else None
        self.ends = None
        if options.ends:
            try:
                seconds_of(options.ends)
                self.ends = options.ends
            except ValueError as error:
                say("--ends is ignored: {}".format(error))
        self.most_s = BLOCK_S if self.ends else MOST_S
        self.state = {"silent_since": None, "silent": "", "notice": None, "withdrawn": None, "rebalance": None,
                      "hook": None}  # fmt: skip
        self.written = None
        try:
            with open(options.record, encoding="utf-8") as stream:
                kept = json.load(stream)
            self.state.update({key: kept[key] for key in self.state})
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            say("the record cannot be read and begins anew: {}".format(error))

    def look(self):
        """Ask once, write down what is new, act on it."""
        try:
            self._noticed(self._heard())
            advice = self.metadata.ask(REBALANCE) if self.options.metadata and not self.events else None
            self._advised(document(advice, REBALANCE, "noticeTime")["noticeTime"] if advice is not None else None)
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

    def _heard(self):
        """The notice that stands now, or None. Raises Silent."""
        ends = self.ends
        over = {"action": "terminate", "time": ends} if ends and seconds_of(ends) - time.time() < BLOCK_S else None
        if self.events:
            return self.events.notice(self.state["notice"])
        heard = self.metadata.ask(NOTICE) if self.options.metadata and not over else None
        if heard is None:
            return over
        found = document(heard, NOTICE, "time")
        if not isinstance(found.get("action"), str) or not PLAIN.fullmatch(found["action"]):
            raise Silent("{} says {!r}, which names no action".format(NOTICE, heard[:120]))
        return found

    def _noticed(self, found):
        old = self.state["notice"]
        if found is None:
            if old is not None:
                say("the notice ({action} at {time}) was taken back".format(**old))
                self.state.update(notice=None, withdrawn=old)
        elif old is None or (old["action"], old["time"]) != (found["action"], found["time"]):
            now = time.time()
            left = seconds_of(found["time"]) - now
            say("NOTICE: this machine: {} at {}, in {:.0f} s".format(found["action"], found["time"], left))
            self.state["notice"] = {"action": found["action"], "time": found["time"], "seen": round(now, 1)}

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
            known = self.unit()
            if known.get("ActiveState") == "inactive" and known.get("Result") == "success":
                say("the hook had not been started yet")
                self._start(hook)
            self._wait(hook)
        if notice is None or not os.path.exists(self.options.hook):
            return
        name = "{action} {time}".format(**notice)
        if hook is not None and hook["notice"] == name:
            return
        # Those of an earlier notice, which was taken back: its unit stays for its end to be known.
        run("systemctl", "stop", UNIT)
        run("systemctl", "reset-failed", UNIT)
        hook = {"notice": name, "began": round(time.time(), 1), "state": "running", "result": None, "status": None,
                "output": []}  # fmt: skip
        self.state["hook"] = hook
        self.save()  # first: what is written here is not begun a second time
        self._start(hook)
        self._wait(hook)

    def _start(self, hook):
        action, _, when = hook["notice"].partition(" ")
        left = seconds_of(when) - time.time() - RESERVE_S
        deadline = int(max(LEAST_S, min(self.most_s, left)))
        say("running the hook, which has {} s".format(deadline))
        code, said = run(
            "systemd-run", "--quiet", "--no-block", "--unit=" + UNIT, "--description=gpuprov: hooks.interrupted",
            "--service-type=oneshot", "--remain-after-exit", "--property=TimeoutStartSec={}".format(deadline),
            "--property=TimeoutStopSec=5", "--setenv=GPUPROV_NODE=" + self.options.node,
            "--setenv=GPUPROV_ACTION=" + action, "--setenv=GPUPROV_TIME=" + when, "/bin/sh", self.options.hook,
        )  # fmt: skip
        if code:
            hook.update(state="ended", result="not started", output=said.splitlines()[-LINES:])
            say("the hook could not be started: {}".format(said))
            self.save()

    def unit(self):
        """What systemd knows of the hook's unit; empty where it does not answer."""
        fields = "ActiveState,Result,ExecMainCode,ExecMainStatus,InvocationID"
        code, said = run("systemctl", "show", "--property", fields, "--", UNIT)
        return dict(line.split("=", 1) for line in said.splitlines() if "=" in line) if code == 0 else {}

    def _wait(self, hook):
        """Until systemd says that the hook has ended, which it sees to: active or failed, by how it was started."""
        began = time.monotonic()
        while hook["state"] == "running":
            notify("WATCHDOG=1")
            known, waited = self.unit(), time.monotonic() - began
            state = known.get("ActiveState", "unknown")
            if state in ("active", "failed"):
                self._ended(hook, known)
            elif waited > self.most_s + 15 or (state == "inactive" and waited > STOPPED_S):
                self._ended(hook, {"Result": "stopped" if state == "inactive" else "no end seen"})
            else:
                time.sleep(0.2)

    def _ended(self, hook, known):
        # 1: exited (siginfo's CLD_EXITED); else the status is a signal.
        exited = known.get("ExecMainCode") == "1" and known.get("ExecMainStatus", "").isdigit()
        run("journalctl", "--sync", timeout=5)
        words = ["journalctl", "--no-pager", "--output=cat", "--lines={}".format(LINES), "--unit=" + UNIT]
        if known.get("InvocationID"):
            words.append("_SYSTEMD_INVOCATION_ID=" + known["InvocationID"])
        code, said = run(*words)
        hook.update(state="ended", result=known.get("Result") or "unknown",
                    status=int(known["ExecMainStatus"]) if exited else None,
                    output=[line[:400] for line in said.splitlines()][-LINES:] if code == 0 else [])  # fmt: skip
        status = "exit status {}".format(hook["status"]) if exited else "result " + hook["result"]
        say("the hook ended: {}, after {:.1f} s".format(status, time.time() - hook["began"]))
        self.save()

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
        found = [("pending", "Whether the cloud has announced that it takes this machine", int(notice is not None))]
        if notice is not None:
            found.append(("timestamp_seconds", "When it does", int(seconds_of(notice["time"]))))
        found.append(("rebalance", "Whether AWS recommends to move away", int(self.state["rebalance"] is not None)))
        found.append(("answered", "Whether the metadata service answers", int(self.state["silent_since"] is None)))
        if hook is not None and hook["state"] == "ended":
            found.append(("hook_ok", "Whether hooks.interrupted ended well", int(hook["result"] == "success")))
        rows = ("# HELP gpuprov_interruption_{0} {1}\n# TYPE gpuprov_interruption_{0} gauge\n"
                "gpuprov_interruption_{0} {2}\n".format(*one) for one in found)  # fmt: skip
        return "".join(rows)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="gpuprov-interruption", description=__doc__.splitlines()[0])
    parser.add_argument("--node", required=True, help="the node's name")
    parser.add_argument("--record", required=True, help="the file that says what was heard")
    parser.add_argument("--hook", required=True, help="the file of the shell command to run; there need not be one")
    parser.add_argument("--textfile", default="", help="a .prom file")
    parser.add_argument("--metadata", default="169.254.169.254:80",
                        help="HOST:PORT of the metadata service; empty for a machine that is not spot")  # fmt: skip
    parser.add_argument("--service", choices=("aws", "azure", "tencent", "alicloud"), default="aws",
                        help="whose metadata service that is")  # fmt: skip
    parser.add_argument("--ends", default="", help="when the machines of a capacity block begin to be taken")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two questions")
    options = parser.parse_args(arguments)
    os.umask(0o022)
    watcher = Watcher(options)
    notify("READY=1")
    while True:
        watcher.look()
        notify("WATCHDOG=1")
        time.sleep(options.every)


if __name__ == "__main__":
    sys.exit(main())
