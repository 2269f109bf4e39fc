"""What an installer is told: Debian's preseed, Ubuntu's autoinstall. Neither holds a secret: whoever can fetch the
image learns a public key and a name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import yaml

from provisioner.common.errors import GpuprovError

_GUARD = Path(__file__).parent / "guard.sh"

_SHAPES = {
    "name": r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?",
    "user": r"[a-z_][a-z0-9_-]{0,31}",
    "ssh_key": r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp[0-9]+) [A-Za-z0-9+/=]{60,2000}( [A-Za-z0-9@._:+-]{1,200})?",
    "disk": r"by-size|/dev/(disk/by-(id|path)/)?[A-Za-z0-9._:+-]+",
    "mirror": r"https?://[A-Za-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9._/-]*)?",
    "serial": r"[A-Za-z0-9._:/-]{2,64}",
    "token": r"[a-f0-9]{16,64}",
    "report": r"https?://(\[[0-9a-fA-F:]+\]|[0-9A-Za-z.-]+):[0-9]+/[a-f0-9]{16,64}",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Address:
    """A fixed address of a machine. `address`: with its prefix, 10.0.0.11/24; `gateway`: "" for none."""

    address: IPv4Interface
    gateway: str = ""
    dns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """One machine to be installed. `serials`: what the machine itself must say (DMI serial number, chassis, UUID), any
    one of them; `reinstall`: overwrite what is on its disks; `token`: left on the machine in /etc/gpuprov-installed, so
    that this installation is known from another one; `mac`: the port that asks for an address, "" for any;
    `fixed`: its address, None for the one that DHCP gives it; `report`: URL that the installer calls with /installed at
    its end, and with /refused/WORD where it refuses, "" for none."""

    name: str
    user: str
    ssh_key: str
    serials: tuple[str, ...]
    token: str
    disk: str = "by-size"
    reinstall: bool = False
    mirror: str = "http://deb.debian.org/debian"
    mac: str = ""
    fixed: Address | None = None
    report: str = ""

    def __post_init__(self) -> None:
        values = {
            "name": self.name,
            "user": self.user,
            "ssh_key": self.ssh_key,
            "disk": self.disk,
            "mirror": self.mirror,
        }
        values |= {"token": self.token}
        for field, value in values.items():
            if not re.fullmatch(_SHAPES[field], value):
                raise GpuprovError(f"{field} {value[:60]!r} cannot be passed to an installer", where=self.name)
        if not self.serials or not all(re.fullmatch(_SHAPES["serial"], serial) for serial in self.serials):
            raise GpuprovError(
                f"serial {' '.join(self.serials)[:60]!r} cannot be passed to an installer", where=self.name,
                hint="an installation is bound to the machine's serial number, chassis serial number or UUID",
            )  # fmt: skip
        if self.mac and not re.fullmatch(r"([0-9a-f]{2}:){5}[0-9a-f]{2}", self.mac):
            raise GpuprovError(f"{self.mac!r} is not a MAC address", where=self.name)
        if self.report and not re.fullmatch(_SHAPES["report"], self.report):
            raise GpuprovError(f"{self.report[:60]!r} cannot be passed to an installer", where=self.name)


def guard(target: Target) -> str:
    """The script that keeps an installer from the wrong machine, and from disks that hold data."""
    text = _GUARD.read_text(encoding="utf-8")
    filled = text.replace("@SERIALS@", " ".join(target.serials)).replace("@REPORT@", target.report)
    return filled.replace("@REINSTALL@", "yes" if target.reinstall else "no")


def _reported(target: Target) -> list[str]:
    """The last command of an installation. That it is not heard changes nothing: it was given its installer once."""
    return [f"wget -q -T 20 -O /dev/null {target.report}/installed || true"] if target.report else []


def preseed(target: Target) -> str:
    """For Debian's installer; `guard` lies beside it in the installer's memory as /gpuprov-guard.
    https://www.debian.org/releases/bookworm/amd64/apb.en.html"""
    scheme, _, host_and_folder = target.mirror.partition("://")
    host, _, folder = host_and_folder.partition("/")
    home = f"/target/home/{target.user}"
    late = [
        f"mkdir -p -m 700 {home}/.ssh",
        f"echo '{target.ssh_key}' > {home}/.ssh/authorized_keys",
        f"chmod 600 {home}/.ssh/authorized_keys",
        f"in-target chown -R {target.user}:{target.user} /home/{target.user}/.ssh",
        f"echo '{target.user} ALL=(ALL) NOPASSWD:ALL' > /target/etc/sudoers.d/90-gpuprov",
        "chmod 440 /target/etc/sudoers.d/90-gpuprov",
        "echo 'PasswordAuthentication no' > /target/etc/ssh/sshd_config.d/10-gpuprov.conf",
        f"echo {target.token} > /target/etc/gpuprov-installed",
        *(f"{{ {command}; }}" for command in _reported(target)),
    ]
    chosen = "$(sh /gpuprov-guard smallest)" if target.disk == "by-size" else f"$(readlink -f {target.disk})"
    disks = (
        f"sh /gpuprov-guard disks; debconf-set partman-auto/disk {chosen}; debconf-set grub-installer/bootdev {chosen}"
    )
    lines = {
        "debian-installer/locale": ("string", "en_US.UTF-8"),
        "keyboard-configuration/xkb-keymap": ("select", "us"),
        "preseed/early_command": ("string", "sh /gpuprov-guard machine"),
        "hw-detect/load_firmware": ("boolean", "false"),
        "netcfg/choose_interface": ("select", target.mac or "auto"),
        "netcfg/get_hostname": ("string", target.name.partition(".")[0]),
        "netcfg/hostname": ("string", target.name.partition(".")[0]),
        "netcfg/get_domain": ("string", target.name.partition(".")[2]),
        "netcfg/wireless_wep": ("string", ""),
        "mirror/country": ("string", "manual"),
        "mirror/protocol": ("select", scheme),
        f"mirror/{scheme}/hostname": ("string", host),
        f"mirror/{scheme}/directory": ("string", f"/{folder}".rstrip("/") or "/"),
        f"mirror/{scheme}/proxy": ("string", ""),
        "passwd/root-login": ("boolean", "false"),
        "passwd/user-fullname": ("string", target.user),
        "passwd/username": ("string", target.user),
        "passwd/user-password-crypted": ("password", "!"),
        "clock-setup/utc": ("boolean", "true"),
        "time/zone": ("string", "Etc/UTC"),
        "clock-setup/ntp": ("boolean", "false"),
        "partman/early_command": ("string", disks),
        "partman-auto/method": ("string", "regular"),
        "partman-auto/choose_recipe": ("select", "atomic"),
        "partman-lvm/device_remove_lvm": ("boolean", "true"),
        "partman-md/device_remove_md": ("boolean", "true"),
        "partman-partitioning/confirm_write_new_label": ("boolean", "true"),
        "partman/choose_partition": ("select", "finish"),
        "partman/confirm": ("boolean", "true"),
        "partman/confirm_nooverwrite": ("boolean", "true"),
        "partman-efi/non_efi_system": ("boolean", "true"),
        "apt-setup/cdrom/set-first": ("boolean", "false"),
        "popularity-contest/participate": ("boolean", "false"),
        "pkgsel/upgrade": ("select", "safe-upgrade"),
        "pkgsel/include": ("string", "openssh-server sudo python3 ca-certificates"),
        "grub-installer/only_debian": ("boolean", "true"),
        "grub-installer/with_other_os": ("boolean", "true"),
        "grub-installer/force-efi-extra-removable": ("boolean", "true"),
        "preseed/late_command": ("string", " && ".join(late)),
        "finish-install/reboot_in_progress": ("note", ""),
        "cdrom-detect/eject": ("boolean", "true"),
    }
    if target.fixed:
        lines |= {
            "netcfg/disable_autoconfig": ("boolean", "true"),
            "netcfg/get_ipaddress": ("string", str(target.fixed.address.ip)),
            "netcfg/get_netmask": ("string", str(target.fixed.address.netmask)),
            "netcfg/get_gateway": ("string", target.fixed.gateway),
            "netcfg/get_nameservers": ("string", " ".join(target.fixed.dns)),
            "netcfg/confirm_static": ("boolean", "true"),
        }
    text = "".join(f"d-i {key} {kind} {value}".rstrip() + "\n" for key, (kind, value) in lines.items())
    return (
        text.replace("d-i popularity-contest/", "popularity-contest popularity-contest/")
        + "tasksel tasksel/first multiselect\n"
    )


def autoinstall(target: Target) -> str:
    """user-data for Ubuntu's installer; `guard` lies at /cdrom/nocloud/guard.sh.
    https://canonical-subiquity.readthedocs-hosted.com/en/latest/reference/autoinstall-reference.html"""
    guard_at, fetched = "/cdrom/nocloud/guard.sh", []
    if target.report:
        guard_at = "/run/gpuprov-guard.sh"
        fetched = [f"wget -q -T 60 -O {guard_at} {target.report}/guard.sh"]
    match = {"size": "smallest"} if target.disk == "by-size" else {"path": target.disk}
    document: dict[str, Any] = {
        "version": 1,
        # The installer has an sshd of its own: nobody is to take it for the machine's.
        "early-commands": ["systemctl stop ssh || true", *fetched, f"sh {guard_at} machine", f"sh {guard_at} disks"],
        "locale": "en_US.UTF-8",
        "keyboard": {"layout": "us"},
        "identity": {"hostname": target.name.partition(".")[0], "username": target.user, "password": "!"},
        "ssh": {"install-server": True, "allow-pw": False, "authorized-keys": [target.ssh_key]},
        "storage": {"layout": {"name": "direct", "match": match}},
        "packages": ["python3", "ca-certificates"],
        "updates": "security",
        "shutdown": "reboot",
        "late-commands": [
            f"echo '{target.user} ALL=(ALL) NOPASSWD:ALL' > /target/etc/sudoers.d/90-gpuprov",
            "chmod 440 /target/etc/sudoers.d/90-gpuprov",
            f"echo {target.token} > /target/etc/gpuprov-installed",
            *_reported(target),
        ],
    }
    if target.mac:
        document["network"] = network(target)
    return "#cloud-config\n" + yaml.safe_dump({"autoinstall": document}, sort_keys=False)


def network(target: Target) -> dict[str, Any]:
    """netplan's document for the port that the machine is installed by."""
    port: dict[str, Any] = {"match": {"macaddress": target.mac}, "dhcp4": target.fixed is None}
    if target.fixed:
        port["addresses"] = [str(target.fixed.address)]
        port["nameservers"] = {"addresses": list(target.fixed.dns)}
        if target.fixed.gateway:
            port["routes"] = [{"to": "default", "via": target.fixed.gateway}]
    return {"version": 2, "ethernets": {"install": port}}
