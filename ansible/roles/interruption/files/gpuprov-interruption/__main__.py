#!/usr/bin/python3
"""Hears that the cloud takes this machine away, writes it down, and runs the hook, once for each notice.

    python3 -I gpuprov-interruption --node train-0 --record /run/gpuprov/interruption.json --hook /etc/gpuprov/interrupted

A spot machine of Amazon's is told so two minutes before; one of Azure's half a minute before, by the same service as
of maintenance (--service azure: Scheduled Events); one of Tencent Cloud's by a page of its own (--service tencent), and
one of Alibaba Cloud's about five minutes before (--service alicloud).
When a capacity block of Amazon's ends is known from the start (--ends): nobody tells the machine, so that counts as a
notice ten minutes before, when Amazon's own warning is sent to the account.

Standard library only, Python 3.8 or newer; role interruption makes a service of this folder. It asks the instance
metadata service every few seconds. The hook runs as a unit of its own, gpuprov-interrupted.service, so that it outlives a
restart of this program, and systemd ends it 20 s before the machine goes. What was heard and done is in the record, which
lasts until the next boot: a restart repeats nothing and loses nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from interruption.node import notify
from interruption.watcher import OTHERS, Watcher


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="gpuprov-interruption", description=__doc__.splitlines()[0])
    parser.add_argument("--node", required=True, help="the node's name")
    parser.add_argument("--record", required=True, help="the file that says what was heard")
    parser.add_argument("--hook", required=True, help="the file of the shell command to run; there need not be one")
    parser.add_argument("--textfile", default="", help="a .prom file")
    parser.add_argument("--metadata", default="169.254.169.254:80",
                        help="HOST:PORT of the metadata service; empty for a machine that is not spot")  # fmt: skip
    parser.add_argument("--service", choices=("aws", *OTHERS), default="aws",
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
