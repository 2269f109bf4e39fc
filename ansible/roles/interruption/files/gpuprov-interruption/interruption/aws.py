"""Amazon's notices: spot machines, two minutes before, and advice to move away; the end of a capacity block, which nobody
tells the machine, counts as a notice ten minutes before, when Amazon's own warning is sent to the account."""

from __future__ import annotations

import re
import time

from interruption.metadata import Metadata, Silent, document, seconds_of

NOTICE = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
BLOCK_S = 600
"""How long before a block's machines are taken the notice is given.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html (Capacity Block Expiration Warning)"""
PLAIN = re.compile(r"[a-z][a-z-]{0,31}")


class SpotAction:
    """Amazon's at HOST:PORT; nothing is asked where there is none. `ends`: when the machines of a capacity block begin to
    be taken, or None."""

    def __init__(self, address, ends=None):
        self.metadata, self.ends = Metadata(address) if address else None, ends

    def notice(self, old):
        """The notice that stands; None where there is none. Raises Silent."""
        ends = self.ends
        over = {"action": "terminate", "time": ends} if ends and seconds_of(ends) - time.time() < BLOCK_S else None
        heard = self.metadata.ask(NOTICE) if self.metadata and not over else None
        if heard is None:
            return over
        notice = document(heard, NOTICE, "time")
        if not isinstance(notice.get("action"), str) or not PLAIN.fullmatch(notice["action"]):
            raise Silent("{} says {!r}, which names no action".format(NOTICE, heard[:120]))
        return notice

    def advice(self):
        """When Amazon recommended to move away; None where it does not. Raises Silent."""
        text = self.metadata.ask(REBALANCE) if self.metadata else None
        return document(text, REBALANCE, "noticeTime")["noticeTime"] if text is not None else None
