"""`provider: baremetal`: machines that exist, named one by one or by ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field

from provisioner.spec.base import Model, Text
from provisioner.spec.site import Jump, LoginName, Site

Port = Annotated[int, Field(ge=1, le=65535)]
SerialNumber = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9._:/-]{2,64}$",
        title="a serial number: 2 to 64 letters, digits and . _ : / -, such as 7XK2L33",
    ),
]
MacAddress = Annotated[
    str, Field(pattern=r"^[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5}$", title="a MAC address such as b8:59:9f:00:00:01")
]
Ipv4 = Annotated[str, Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$", title="an IPv4 address")]
FilePath = Annotated[Text, Field(title="the path of a file")]


class HostEntry(Model):
    """A host, or a range of hosts."""

    group: Text | None = Field(
        default=None, title="the name of a group", description="Group of it; null: the only group of the site"
    )
    address: Text | None = Field(
        default=None,
        title="an address, or a range of as many",
        description="Host name or IP address that ssh calls; null: its name",
        examples=["10.0.0.[11-14]"],
    )
    port: Port | None = Field(default=None, title="a port", description="Port of its sshd; null: the site's")
    user: LoginName | None = Field(default=None, title="a login name", description="Account on it; null: the site's")
    jump: Jump | None = Field(
        default=None, title="[user@]host[:port]", description="Jump host on ssh's way to it; null: the site's"
    )
    bmc: Text | None = Field(
        default=None,
        title="an address, or a range of as many",
        description="Address of its management controller (BMC), host[:port]",
        examples=["bmc-dgx[01-04].lab"],
    )
    mac: Annotated[tuple[MacAddress, ...], Field(max_length=10_000)] | MacAddress | None = Field(
        default=None,
        title="a MAC address, or a list of as many",
        description="Of the port that it starts from the network with (method: pxe)",
        examples=["b8:59:9f:00:00:01"],
    )
    serial: Annotated[tuple[SerialNumber, ...], Field(max_length=10_000)] | SerialNumber | None = Field(
        default=None,
        title="a serial number (2 to 64 letters, digits and . _ : / -), or a list of as many",
        description="What its BMC must show before anything is changed through it; null: what it showed first",
        examples=[["1662923610124", "1662923610125"]],
    )


class Install(Model):
    """What is installed on machines that have only a BMC."""

    os: Annotated[str, Field(pattern=r"^[a-z]+-[0-9]+(\.[0-9]+)?$")] | None = Field(
        default=None,
        title="a distribution such as ubuntu-24.04, or null",
        description="Distribution; null: that of the group's stack",
        examples=["ubuntu-24.04"],
    )
    disk: Annotated[str, Field(pattern=r"^(by-size|/dev/(disk/by-(id|path)/)?[A-Za-z0-9._:+-]+)$")] = Field(
        default="by-size",
        title="by-size, or a path under /dev",
        description="Disk that it is installed on; by-size: the smallest one of at least 32 GB",
    )
    iso: FilePath | None = Field(
        default=None,
        description="The distribution's installer: its ISO image, or the folder of Debian's netboot images; relative "
        "to cluster.yaml",
        examples=["ubuntu-24.04.3-live-server-amd64.iso"],
    )
    image: FilePath | None = Field(
        default=None,
        description="In place of `iso` and `os`: a golden disk image (raw, starts by UEFI, with cloud-init) that is "
        "written to the machines' disks as it is; relative to cluster.yaml",
        examples=["disks/metal-dgx-20260131-031500.raw"],
    )
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        default=None,
        title="64 hex digits in lower case, without a prefix",
        description="SHA-256 of the ISO image, as the distribution publishes it, or of the disk image; needed for both",
    )
    serve: Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z.:-]{0,252}$")] | None = Field(
        default=None,
        title="an address of this computer, with or without a port",
        description="Where BMCs fetch the image from, host[:port]; null: the address that faces them, any free port",
        examples=["10.0.0.5:8443"],
    )
    mirror: Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9._/-]*)?$")] = Field(
        default="http://deb.debian.org/debian",
        title="a URL",
        description="Where Debian's installer takes its packages from, which it verifies; with `image` the kernel of "
        "the system that writes it",
    )
    reinstall: Annotated[tuple[SerialNumber, ...], Field(max_length=10_000)] = Field(
        default=(),
        title="a list of serial numbers",
        description="Machines that may be switched off and whose disks may be overwritten, by the serial number that "
        "their BMC shows; each once",
        examples=[["1662923610124"]],
    )


class Pxe(Model):
    """How machines that start from the network are answered."""

    interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,14}$")] = Field(
        title="a network interface of this computer",
        description="The interface of this computer on which machines are answered, and no other",
        examples=["eth1"],
    )
    dhcp: Literal["static", "proxy"] = Field(
        default="static",
        description="static: each host gets its `address`, and nobody else gets one; proxy: the network has a DHCP "
        "server, and only what to start from is added to its answers",
    )
    gateway: Ipv4 | None = Field(
        default=None, title="an IPv4 address, or null", description="Default route of the hosts, for dhcp: static"
    )
    dns: Annotated[tuple[Ipv4, ...], Field(max_length=3)] = Field(
        default=(),
        title="a list of IPv4 addresses",
        description="Name servers of the hosts, for dhcp: static",
        examples=[["10.0.0.2"]],
    )


class Maas(Model):
    """Which machines of a MAAS are taken."""

    url: Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.:/_-]+$", max_length=255)] = Field(
        title="the address of a MAAS, http://…/MAAS",
        description="Address of the MAAS; the API key comes from MAAS_API_KEY",
        examples=["https://maas.lab/MAAS"],
    )
    insecure: bool = Field(
        default=False,
        description="Whether http is taken: the API key, user data and what MAAS answers then cross the network "
        "readable and changeable",
    )
    pool: Text | None = Field(default=None, title="a resource pool", description="Resource pool; null: any")
    zone: Text | None = Field(default=None, title="a zone of MAAS", description="Zone of MAAS; null: any")
    tags: dict[Text, tuple[Text, ...]] = Field(
        default_factory=dict,
        title="a list of tags for each group, such as train: [dgx-h100]",
        description="Tags of MAAS that each machine of a group has to have",
        examples=[{"train": ["dgx-h100"]}],
    )
    network: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+){3}/[0-9]{1,2}$")] | None = Field(
        default=None,
        title="a network such as 10.0.0.0/24, or null",
        description="Network in which a machine's address is; null: its first IPv4 address",
    )


class BareMetalSettings(Site):
    """Machines that are yours already."""

    provider: Literal["baremetal"] = Field(description="Machines that are yours already")
    method: Literal["ssh", "maas", "redfish", "pxe"] = Field(
        default="ssh",
        description="How they are reached: ssh takes machines that run already, redfish installs them through their "
        "BMC, pxe those that start from the network, maas deploys machines of a MAAS",
    )
    hosts: dict[Annotated[str, Field(pattern=r"^.+$", max_length=255)], HostEntry] = Field(
        default_factory=dict,
        max_length=10_000,
        title="hosts or ranges of hosts, such as dgx[01-16].lab: { group: train }",
        description="The machines, by host name or by a range of them; local: the machine that gpuprov runs on, "
        "without ssh",
        examples=[{"dgx[01-04].lab": {"group": "train"}}],
    )
    inventory: FilePath | None = Field(
        default=None,
        description="Ansible inventory (INI) that names the hosts in place of `hosts`; relative to cluster.yaml",
        examples=["hosts.ini"],
    )
    port: Port = Field(default=22, title="a port", description="Port of the hosts' sshd")
    host_keys: FilePath | None = Field(
        default=None,
        description="known_hosts file with the ed25519 host key of each host; null: the key that a host shows at first "
        "contact is pinned, and its fingerprint shown",
        examples=["known_hosts"],
    )
    credentials: Annotated[str, Field(pattern=r"^(env:[A-Z][A-Z0-9_]{0,31}|file:.+)$", max_length=255)] | None = Field(
        default=None,
        title="env:NAME or file:PATH",
        description="Where user and password of the BMCs come from: env:BMC reads BMC_USER and BMC_PASSWORD; file:PATH "
        "a file of yours with mode 0600",
        examples=["env:BMC"],
        json_schema_extra={"writeOnly": True},
    )
    maas: Maas | None = Field(default=None, description="Which machines of a MAAS are taken, for method: maas")
    install: Install | None = Field(
        default=None, description="What is installed on machines that have no operating system (method: redfish, pxe)"
    )
    pxe: Pxe | None = Field(
        default=None, description="How machines are answered that start from the network (method: pxe)"
    )

    firmware: dict[Text, dict[Text, Text]] = Field(
        default_factory=dict,
        title="versions for each group, such as train: { BIOS: 1.8.2 }",
        description="Firmware that the machines of a group have to have, by the names that `gpuprov bmc FILE status "
        "--json` lists (BIOS, BMC, parts); anything else is a warning of `verify`",
        examples=[{"train": {"BIOS": "1.8.2"}}],
    )
    power_budget_w: Annotated[float, Field(gt=0, le=1e8)] | None = Field(
        default=None,
        title="watts",
        description="What the machines of the site may draw together, by their BMCs; more is a warning of `verify`",
        examples=[40000],
    )

    def home(self) -> dict[str, str]:
        """Machines of MAAS are created and released; all others exist, however they are reached."""
        return {**super().home(), "method": "maas" if self.method == "maas" else "hosts"}

    def located(self, folder: Path) -> Self:
        updates: dict[str, object] = {}
        for key in ("inventory", "host_keys"):
            if value := getattr(self, key):
                updates[key] = str(folder / Path(value).expanduser())
        if self.credentials and self.credentials.startswith("file:"):
            updates["credentials"] = "file:" + str(folder / Path(self.credentials[5:]).expanduser())
        if self.install is not None:
            files = {
                key: str(folder / Path(value).expanduser())
                for key in ("iso", "image")
                if (value := getattr(self.install, key))
            }
            updates["install"] = self.install.model_copy(update=files)
        return self.model_copy(update=updates) if updates else self

    def not_in_sandbox(self) -> tuple[str, ...]:
        if self.method == "redfish":
            return ("a sandbox installs nothing and asks no BMC: its nodes are simulated ones",)
        if self.method == "pxe":
            return ("a sandbox answers no machine on the network: its nodes are simulated ones",)
        return ("a sandbox asks no MAAS: its nodes are simulated ones",) if self.method == "maas" else ()
