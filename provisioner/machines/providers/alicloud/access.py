"""The way to an instance: its address; and its host key as its console shows it.

https://www.alibabacloud.com/help/en/ecs/developer-reference/api-ecs-2014-05-26-getinstanceconsoleoutput
"""

from __future__ import annotations

import base64
import binascii
import time

from provisioner.machines.providers.alicloud.client import Region
from provisioner.machines.providers.first_boot import host_key_of
from provisioner.machines.providers.trouble import Trouble

WAIT_S, PAUSE_S = 30.0, 3.0
"""sshd answers a little before cloud-init writes the keys."""


class EcsAccess:
    """See providers/base.py for the contract."""

    def __init__(self, region: str) -> None:
        self._region = region

    def proxy(self, machine: str) -> str | None:  # noqa: ARG002
        return None

    def console(self, machine: str) -> str | None:
        try:
            return self._console_output(machine) or None
        except Trouble:
            return None

    def host_key(self, machine: str) -> str | None:
        until = time.monotonic() + WAIT_S
        while True:
            try:
                if key := host_key_of(self._console_output(machine)):
                    return key
            except Trouble:
                return None
            if time.monotonic() > until:
                return None
            time.sleep(PAUSE_S)

    def _console_output(self, machine: str) -> str:
        """What the console shows now; empty where it shows nothing. Raises Trouble."""
        answer = Region(self._region).ask("ecs", "GetInstanceConsoleOutput", InstanceId=machine, RemoveSymbols=True)
        try:
            text = base64.b64decode(str(answer.get("ConsoleOutput") or ""), validate=True)
        except binascii.Error:
            return ""
        return text.decode("utf-8", "replace")
