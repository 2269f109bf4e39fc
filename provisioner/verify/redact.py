"""A bundle without what belongs to one machine and its owner, for a ticket or a public issue.

Names, addresses, serial numbers, UUIDs and numbers of accounts are replaced, each by the same stand-in wherever it
stands, in the form that its tool prints: what is the same, or is not, still is or is not, and every check says what it
said. Versions, models, counts, rates and logs stay. Kernel logs are free text: read them before you publish a bundle.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from provisioner.verify.bundle import Bundle, Output

_HEX = "0-9a-fA-F"
_UUID = re.compile(rf"\b(GPU-|MIG-)?([{_HEX}]{{8}}-[{_HEX}]{{4}}-[{_HEX}]{{4}}-[{_HEX}]{{4}}-[{_HEX}]{{12}})\b")
_MAC = re.compile(rf"(?<![{_HEX}:])(?:[{_HEX}]{{2}}:){{5}}[{_HEX}]{{2}}(?![{_HEX}:])")
_GID = re.compile(rf"(?<![{_HEX}:])(?:[{_HEX}]{{4}}:){{3,7}}[{_HEX}]{{4}}(?![{_HEX}:.])")
_GUID = re.compile(rf"\b0x[{_HEX}]{{16}}\b")
_MACHINE_ID = re.compile(rf"(?<![{_HEX}])[0-9a-f]{{32}}(?![{_HEX}])")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_IPV6 = re.compile(
    rf"(?<![{_HEX}:.])(?:[{_HEX}]{{1,4}}:){{2,7}}(?::?[{_HEX}]{{1,4}})?(?![{_HEX}:.])|(?<!\w)[{_HEX}:]*::[{_HEX}:]+"
)
_CLOUD = re.compile(r"\b(i|vol|eni|subnet|vpc|sg|ami|snap|eipalloc|d|ins|disk)(-?)((?=[0-9a-z]*\d)[0-9a-z]{8,20})\b")
_ACCOUNT = re.compile(r"(?<=:)\d{12}(?=:)|(?<=\baccount )\d{12}\b")
_KEY = re.compile(r"\b(ssh-(?:ed25519|rsa|dss)|ecdsa-\S+) AAAA[0-9A-Za-z+/=]{20,}(?: \S+)?")
_HOME = re.compile(r"/home/(?!user\b)[a-z_][a-z0-9_-]*")
SERIALS = (
    re.compile(r"<(?:board_|module_|chassis_)?serial(?:_number)?>([^<]{4,})<"),
    re.compile(r"(?i)\bserial(?:[ _]?(?:number|no\.?))?[ \t\"']*[:=][ \t\"']*([0-9A-Za-z][0-9A-Za-z._-]{4,})"),
)
"""Where tools print a serial number: nvidia-smi -x, then JSON and texts."""
_SAID = frozenset({"n/a", "none", "unknown", "notspecified", "default"})
HOST_NAMES = ("hostname", "node", "nodename", "fqdn", "machine_id")


@dataclass(slots=True)
class _Known:
    """What was replaced, and by what."""

    stand_ins: dict[str, str] = field(default_factory=dict)
    counted: Counter[str] = field(default_factory=Counter)

    def of(self, kind: str, found: str, make: Callable[[int], str]) -> str:
        key = f"{kind} {found.casefold()}"
        if key not in self.stand_ins:
            self.counted[kind] += 1
            self.stand_ins[key] = make(self.counted[kind])
        return self.stand_ins[key]


def redact(bundle: Bundle) -> tuple[Bundle, dict[str, int]]:
    """The bundle with stand-ins, and how many different ones there are of each kind."""
    known = _Known()
    serials = sorted({one for output in bundle.files.values() for one in _serials(output.text)}, key=len, reverse=True)
    names = sorted({one for output in bundle.files.values() for one in _names(output.text)}, key=len, reverse=True)

    def clean(text: str) -> str:
        for serial in serials:
            text = text.replace(serial, known.of("serial number", serial, lambda n, s=serial: _alike(s, n)))  # type: ignore[misc]
        for name in names:
            word = rf"(?<![\w.-]){re.escape(name)}(?![\w-])"
            text = re.sub(word, known.of("host name", name, lambda n: f"node-{n}"), text)
        return _patterns(text, known)

    files = {name: _cleaned(output, clean) for name, output in bundle.files.items()}
    return replace(bundle, files=files, error=clean(bundle.error)), dict(known.counted)


def _cleaned(output: Output, clean: Callable[[str], str]) -> Output:
    return replace(output, text=clean(output.text), error=clean(output.error))


def _patterns(text: str, known: _Known) -> str:
    def uuid(found: re.Match[str]) -> str:
        prefix = found[1] or ""
        return prefix + known.of("UUID", found[2], lambda n: f"{n:08x}-0000-4000-8000-{n:012x}")

    text = _KEY.sub(lambda found: f"{found[1]} (left out)", text)
    text = _UUID.sub(uuid, text)
    text = _MAC.sub(
        lambda found: known.of("MAC address", found[0], lambda n: f"02:00:00:00:{n >> 8:02x}:{n & 255:02x}"), text
    )
    text = _GUID.sub(lambda found: _guid(found[0], known), text)
    text = _GID.sub(lambda found: _gid(found[0], known), text)
    text = _MACHINE_ID.sub(lambda found: known.of("machine id", found[0], lambda n: f"{n:032x}"), text)
    text = _IPV4.sub(lambda found: _ipv4(found[0], known), text)
    text = _IPV6.sub(lambda found: _ipv6(found[0], known), text)
    text = _CLOUD.sub(
        lambda found: known.of("cloud id", found[0], lambda n: f"{found[1]}{found[2]}{n:0{len(found[3])}x}"), text
    )
    text = _ACCOUNT.sub(lambda found: known.of("account", found[0], lambda n: f"{n:012d}"), text)
    return _HOME.sub("/home/user", text)


def _guid(text: str, known: _Known) -> str:
    """Of an InfiniBand card, or a GPU's unique id; zeros and addresses in the kernel are none."""
    if int(text, 16) == 0 or text.lower().startswith("0xffff"):
        return text
    return known.of("GUID", text, lambda n: f"0x0200000000{n:06x}")


def _gid(text: str, known: _Known) -> str:
    """Of an InfiniBand port: its lower half is the port's GUID, or an IPv4 address that RoCE v2 uses."""
    groups = text.split(":")
    if not any(int(one, 16) for one in groups):
        return text
    if len(groups) == 8 and groups[5].lower() == "ffff" and not any(int(one, 16) for one in groups[:5]):
        address = str(ipaddress.IPv4Address(int(groups[6] + groups[7], 16)))
        shown = ipaddress.IPv4Address(_ipv4(address, known)).packed.hex()
        return ":".join([*groups[:6], shown[:4], shown[4:]])
    upper = groups[:4] if len(groups) == 8 else []
    return ":".join(
        [*upper, known.of("GUID", ":".join(groups[-4:]), lambda n: f"0200:0000:{n >> 16:04x}:{n & 65535:04x}")]
    )


def _ipv4(text: str, known: _Known) -> str:
    """Addresses of networks; a version of four numbers is none, unless it looks like a private address."""
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        return text
    if not address.is_private or address.is_loopback or address.is_unspecified or text.startswith(("255.", "192.0.2.")):
        return text
    return known.of("address", text, lambda n: f"192.0.2.{n}" if n < 255 else f"198.51.{n >> 8}.{n & 255}")


def _ipv6(text: str, known: _Known) -> str:
    if _GID.fullmatch(text):  # replaced already
        return text
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return text
    if address.is_loopback or address.is_unspecified or address in ipaddress.IPv6Network("2001:db8::/32"):
        return text
    return known.of("address", text, lambda n: f"2001:db8::{n:x}")


def _alike(serial: str, number: int) -> str:
    """A serial number of the same length and letters, so that columns stay where they are."""
    digits = f"{number:0{len(serial)}d}"[-len(serial) :]
    return "".join(one if one in "._-" else digit for one, digit in zip(serial, digits, strict=True))


def _serials(text: str) -> Iterator[str]:
    for pattern in SERIALS:
        for found in pattern.finditer(text):
            said = found[1].strip()
            if re.sub(r"\W", "", said).casefold() not in _SAID and any(one.isdigit() for one in said) and len(said) > 4:
                yield said


def _names(text: str) -> Iterator[str]:
    """Host names: of JSON files by their keys, of a kernel log by systemd's line."""
    if text.lstrip().startswith("{"):
        try:
            yield from _named(json.loads(text))
        except (ValueError, RecursionError):
            return
    yield from re.findall(r"Hostname set to <([\w.-]{2,})>", text)


def _named(value: Any, depth: int = 6) -> Iterator[str]:
    for key, one in value.items() if isinstance(value, dict) and depth else ():
        if key in HOST_NAMES and isinstance(one, str) and len(one) > 1:
            yield one.strip()
        yield from _named(one, depth - 1)
