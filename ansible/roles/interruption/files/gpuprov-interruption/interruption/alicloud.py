"""Alibaba Cloud's notices: about five minutes before a spot machine is released."""

from __future__ import annotations

from interruption.metadata import Metadata, Silent, seconds_of

NOTICE = "/latest/meta-data/instance/spot/termination-time"
"""Not there, or empty, until the machine is to go; a time in UTC. https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata"""


class ReleaseTime:
    """When Alibaba Cloud releases this machine, told at HOST:PORT."""

    def __init__(self, address):
        self.metadata = Metadata(address, "X-aliyun-ecs-metadata-token")

    def notice(self, old):
        """The notice that stands; None where there is none. Raises Silent."""
        text = (self.metadata.ask(NOTICE) or "").strip()
        if not text:
            return None
        try:
            seconds_of(text)
        except ValueError as error:
            raise Silent("{} says {!r}, which is no time".format(NOTICE, text[:120])) from error
        return {"action": "terminate", "time": text}
