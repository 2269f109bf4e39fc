"""The way to an instance: its address, or a tunnel through AWS; and its host key as its console shows it."""

from __future__ import annotations

import re

from provisioner.common.errors import GpuprovError
from provisioner.machines.providers.aws import console_host_key
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.site import AwsSite

TUNNELS = {
    "ssm": "aws ssm start-session --target {machine} --document-name AWS-StartSSHSession --parameters portNumber=22 "
    "--region {region}",
    "instance-connect": "aws ec2-instance-connect open-tunnel --instance-id {machine} --remote-port 22 "
    "--region {region}",
}
"""`sites.*.connect` → the command that carries ssh.
https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-getting-started-enable-ssh-connections.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/connect-using-eice.html"""


class Ec2Access:
    """See providers/base.py for the contract."""

    def __init__(self, site: AwsSite) -> None:
        self._site = site

    def proxy(self, machine: str) -> str | None:
        if self._site.connect == "direct":
            return None
        if not re.fullmatch(r"i-[0-9a-f]+", machine):  # it becomes part of a command
            raise GpuprovError(f"{machine!r} is not an instance id", hint="nodes.json is damaged: check who wrote it")
        return TUNNELS[self._site.connect].format(machine=machine, region=self._site.region)

    def console(self, machine: str) -> str | None:
        return console_host_key.text(Region(self._site.region), machine)

    def host_key(self, machine: str) -> str | None:
        return console_host_key.host_key(Region(self._site.region), machine)
