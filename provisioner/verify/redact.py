"""A bundle without what belongs to one machine and its owner, for a ticket or a public issue.

Names, addresses, serial numbers, UUIDs and numbers of accounts are replaced, each by the same stand-in wherever it
stands, in the form that its tool prints: what is the same, or is not, still is or is not, and every check says what it
said. Versions, models, counts, rates and logs stay. Kernel logs are free text: read them before you publish a bundle.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from provisioner.common.errors import GpuprovError
from provisioner.verify.bundle import Bundle, Output

_HEX = "0-9a-fA-F"
_START = r"(?:(?<![0-9A-Za-z])|(?<=\\[nrt]))"
"""A word begins here: JSON writes the end of a line before it as two characters."""
_UUID = re.compile(rf"{_START}(GPU-|MIG-)?([{_HEX}]{{8}}-[{_HEX}]{{4}}-[{_HEX}]{{4}}-[{_HEX}]{{4}}-[{_HEX}]{{12}})\b")
_MAC = re.compile(rf"(?<![{_HEX}:])(?:[{_HEX}]{{2}}:){{5}}[{_HEX}]{{2}}(?![{_HEX}:])")
_IPOIB = re.compile(
    rf"(?<![{_HEX}:])((?:[{_HEX}]{{2}}:){{11}}[{_HEX}]{{2}}):((?:[{_HEX}]{{2}}:){{7}}[{_HEX}]{{2}})(?![{_HEX}:])"
)
_GID = re.compile(rf"(?<![{_HEX}:])(?:[{_HEX}]{{4}}:){{3,7}}[{_HEX}]{{4}}(?![{_HEX}:.])")
_GUID = re.compile(rf"\b0x(?!0000)[{_HEX}]{{16}}\b")
_UNIQUE = re.compile(rf"(?i)(unique[ _]id\"?[ \t]*[:=][ \t]*\"?)(0x[{_HEX}]{{8,16}})\b")
_EUI = re.compile(rf"(?i)\b((?:eui|naa|nguid)\.?)([{_HEX}]{{16}})\b")
_MACHINE_ID = re.compile(rf"(?<![{_HEX}])[0-9a-f]{{32}}(?![{_HEX}])")
_OCTETS = r"(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"
_IPV4 = re.compile(rf"(?:(?<![\w.])|(?<=\\[nrt])){_OCTETS}")
_PUBLIC = re.compile(
    rf"(?i)({_START}(?:nameserver|address|addr|server|gateway|inet|peer|via|src|dst|host|ip)\"?[ \t]*[:= ][ \t]*\"?|://|@)({_OCTETS})"
)
"""An address that is not a private one, where a text says that it is an address: versions look the same."""
_IPV6 = re.compile(
    rf"(?<![{_HEX}:.])(?:[{_HEX}]{{1,4}}:){{2,7}}(?::?[{_HEX}]{{1,4}})?(?![{_HEX}:.])"
    rf"|(?:(?<![\w:])|(?<=\\[nrt]))(?:[{_HEX}]{{1,4}}:){{0,7}}:(?:[{_HEX}]{{1,4}}:){{0,7}}[{_HEX}]{{0,4}}(?![{_HEX}:])"
)
_CLOUD = re.compile(
    rf"{_START}((?:i|eni|subnet|vpc|sg|ami|snap|eipalloc|d|ins|disk)-|vol-?)((?=[0-9a-z]*\d)[0-9a-z]{{8,20}})\b"
)
_ACCOUNT = re.compile(r"(?<=:)\d{12}(?=:)|(?<=\baccount )\d{12}\b")
_KEY = re.compile(
    r"\b((?:sk-)?(?:ssh-(?:ed25519|rsa|dss)|ecdsa-sha2-\w{1,20})(?:@openssh\.com)?)[ \t]+"
    r"AAAA[0-9A-Za-z+/=]{20,}(?:[ \t]+[^\s\"'\\]+)?"
)
_HOME = re.compile(r"/home/(?!user(?![\w.@-]))[\w.@-]+")
_DNS = re.compile(r"(?:^|\\n|\n|\")(?:search|domain)[ \t]+([\w. -]+)")
SERIALS = (
    re.compile(r"(<(?:board_|module_|chassis_)?serial(?:_number)?>)([^<]{4,64})(?=<)"),
    re.compile(
        r"(?i)(\b(?:serial(?:[ _]?(?:number|no\.?))?|asset[ _]?tag)[ \t\"']{0,60}(?:[:=]|\bis\b)[ \t\"']*)"
        r"([0-9A-Za-z][0-9A-Za-z._-]{4,})"
    ),
)
"""Where tools print a serial number: nvidia-smi -x, then JSON and texts."""
_WORD = re.compile(r"\\[nrt]|[0-9A-Za-z]+(?:[.-][0-9A-Za-z]+)*")
_SAID = frozenset({"na", "none", "unknown", "notspecified", "default"})
HOST_NAMES = frozenset({"hostname", "node", "nodename", "fqdn", "machine_id"})
NOBODYS = frozenset(
    {"localhost", "localhost.localdomain", "ubuntu", "debian", "nvidia", "amd", "amdgpu", "kernel", "linux", "gpu",
     "node", "host", "server", "compute", "master", "worker", "user", "root", "default", "none", "unknown",
     "docker", "systemd"}
)  # fmt: skip
"""Host names that tell nobody anything and are words of tools: replaced, they would change what a tool said."""
MOST_NAMES = 64
"""Host names in one bundle: above what any node has, each is looked for in every file."""


@dataclass(slots=True)
class _Known:
    """What was replaced, and by what."""

    stand_ins: dict[str, str] = field(default_factory=dict)
    counted: Counter[str] = field(default_factory=Counter)

    def of(self, kind: str, original: str, make: Callable[[int], str]) -> str:
        key = f"{kind} {original.casefold()}"
        if key not in self.stand_ins:
            self.counted[kind] += 1
            self.stand_ins[key] = make(self.counted[kind])
        return self.stand_ins[key]


def redact(bundle: Bundle) -> tuple[Bundle, dict[str, int]]:
    """The bundle with stand-ins, and how many different ones there are of each kind. Raises GpuprovError for one that
    has more host names than a node can have."""
    known = _Known()
    texts = [output.text for output in bundle.files.values()]
    serials = {
        serial: _serial(serial, known) for serial in sorted({serial for text in texts for serial in _serials(text)})
    }
    # a short number is one of many things elsewhere, and is replaced in its own place alone
    anywhere = {serial: stand_in for serial, stand_in in serials.items() if len(serial) >= 8 or not serial.isdigit()}
    names = _stand_ins({name for text in texts for name in _names(text)}, known)

    def clean(text: str) -> str:
        for pattern in SERIALS:
            text = pattern.sub(lambda match: match[1] + serials.get(match[2].strip(), match[2]), text)
        text = _WORD.sub(lambda match: anywhere.get(match[0], match[0]), text)
        for pattern, name in names:
            text = pattern.sub(name, text)
        return _patterns(text, known)

    files = {name: _cleaned(output, clean) for name, output in bundle.files.items()}
    return replace(bundle, files=files, error=clean(bundle.error)), dict(known.counted)


def _stand_ins(names: set[str], known: _Known) -> list[tuple[re.Pattern[str], str]]:
    """Patterns of host names, of their first labels and of their domains; the longest first."""
    full_names = {name for name in names if name.casefold() not in NOBODYS and not re.fullmatch(r"[\d.:]*", name)}
    if len(full_names) > MOST_NAMES:
        raise GpuprovError(f"{len(full_names)} host names in one bundle: nothing is written")
    labels = {name.partition(".")[0]: name for name in sorted(full_names) if not name.startswith(".")}
    stand_ins: dict[str, str] = {}
    for name in sorted(full_names):
        label, _, domain = name.partition(".")
        if not label:
            stand_ins[domain] = known.of("domain", domain, lambda n: f"domain-{n}.example")
            continue
        stand_ins[name] = known.of("host name", labels[label], lambda n: f"node-{n}")
        if label.casefold() not in NOBODYS and not label.isdigit() and len(label) > 1:
            stand_ins.setdefault(label, stand_ins[name])
    return [
        (re.compile(rf"(?:(?<!\w)|(?<=\\[nrt])){re.escape(text)}(?!\w)"), stand_ins[text])
        for text in sorted(stand_ins, key=len, reverse=True)
    ]


def _cleaned(output: Output, clean: Callable[[str], str]) -> Output:
    return replace(output, text=clean(output.text), error=clean(output.error))


def _patterns(text: str, known: _Known) -> str:
    def uuid(match: re.Match[str]) -> str:
        prefix = match[1] or ""
        if not match[2].strip("0-"):  # of no cluster
            return match[0]
        return prefix + known.of("UUID", match[2], lambda n: f"{n:08x}-0000-4000-8000-{n:012x}")

    text = _KEY.sub(lambda match: f"{match[1]} {known.of('SSH key', match[0], lambda n: f'(key {n} left out)')}", text)
    text = _UUID.sub(uuid, text)
    text = _IPOIB.sub(lambda match: f"{match[1]}:{_octets(match[2], known)}", text)
    text = _MAC.sub(
        lambda match: known.of("MAC address", match[0], lambda n: f"02:00:00:00:{n >> 8:02x}:{n & 255:02x}"), text
    )
    text = _UNIQUE.sub(lambda match: match[1] + _guid(match[2], known), text)
    text = _EUI.sub(lambda match: match[1] + known.of("GUID", match[2], lambda n: f"0200000000{n:06x}"), text)
    text = _GUID.sub(lambda match: _guid(match[0], known), text)
    text = _GID.sub(lambda match: _gid(match[0], known), text)
    text = _MACHINE_ID.sub(lambda match: known.of("machine id", match[0], lambda n: f"{n:032x}"), text)
    text = _IPV4.sub(lambda match: _ipv4(match[0], known), text)
    text = _PUBLIC.sub(lambda match: match[1] + _ipv4(match[2], known, public=True), text)
    text = _IPV6.sub(lambda match: _ipv6(match[0], known), text)
    text = _CLOUD.sub(lambda match: known.of("cloud id", match[0], lambda n: f"{match[1]}{n:0{len(match[2])}x}"), text)
    text = _ACCOUNT.sub(lambda match: known.of("account", match[0], lambda n: f"{n:012d}"), text)
    return _HOME.sub("/home/user", text)


def _octets(text: str, known: _Known) -> str:
    """A port's GUID, as the end of an address of IP over InfiniBand."""
    guid = known.of("GUID", text, lambda n: f"0x0200000000{n:06x}")[2:]
    return ":".join(guid[i : i + 2] for i in range(0, 16, 2))


def _guid(text: str, known: _Known) -> str:
    """Of an InfiniBand card, or a GPU's unique id; zeros and addresses in the kernel are none."""
    if int(text, 16) == 0 or text.lower().startswith("0xffff"):
        return text
    return known.of("GUID", text, lambda n: f"0x0200000000{n:06x}")


def _gid(text: str, known: _Known) -> str:
    """Of an InfiniBand port: its lower half is the port's GUID, or an IPv4 address that RoCE v2 uses."""
    groups = text.split(":")
    if not any(int(group, 16) for group in groups):
        return text
    if len(groups) == 8 and groups[5].lower() == "ffff" and not any(int(group, 16) for group in groups[:5]):
        address = str(ipaddress.IPv4Address(int(groups[6] + groups[7], 16)))
        address_hex = ipaddress.IPv4Address(_ipv4(address, known)).packed.hex()
        return ":".join([*groups[:6], address_hex[:4], address_hex[4:]])
    upper = groups[:4] if len(groups) == 8 else []
    return ":".join(
        [*upper, known.of("GUID", ":".join(groups[-4:]), lambda n: f"0200:0000:{n >> 16:04x}:{n & 65535:04x}")]
    )


def _ipv4(text: str, known: _Known, *, public: bool = False) -> str:
    """Addresses of networks; a version of four numbers is none, unless it looks like a private address."""
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        return text
    if address.is_loopback or address.is_unspecified or text.startswith(("255.", "192.0.2.", "198.51.")):
        return text
    if not address.is_private and not public:
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


def _serial(serial: str, known: _Known) -> str:
    """A serial number of the same length and letters, so that columns stay where they are."""

    def alike(number: int) -> str:
        digits = f"{number:0{len(serial)}d}"[-len(serial) :]
        return "".join(char if char in "._- " else digit for char, digit in zip(serial, digits, strict=True))

    return known.of("serial number", serial, alike)


def _serials(text: str) -> Iterator[str]:
    for pattern in SERIALS:
        for match in pattern.finditer(text):
            serial = match[2].strip()
            plain = re.sub(r"\W", "", serial).casefold()
            if plain not in _SAID and plain.strip("0") and any(char.isdigit() for char in serial) and len(serial) > 4:
                yield serial


def _names(text: str) -> Iterator[str]:
    """Host names: of JSON files by their keys, of exporters by their label, of a kernel log by systemd's line; with a
    dot before it, a domain that names are looked up in."""
    if text.lstrip().startswith(("{", "[")):
        with contextlib.suppress(ValueError, RecursionError):
            yield from _names_in_json(json.loads(text))
    yield from re.findall(r"Hostname set to <([\w.-]{2,253})>", text)
    yield from re.findall(r"[{,][Hh]ostname=\"([\w.-]{2,253})\"", text)
    yield from re.findall(r"\bip-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3}\b", text)
    for match in _DNS.finditer(text[: 1 << 20]):
        yield from ("." + domain.strip(".") for domain in match[1].split() if "." in domain.strip("."))


def _names_in_json(value: Any, depth: int = 8) -> Iterator[str]:
    if isinstance(value, list) and depth:
        for item in value:
            yield from _names_in_json(item, depth - 1)
    for key, item in value.items() if isinstance(value, dict) and depth else ():
        if key.casefold() in HOST_NAMES and isinstance(item, str) and len(item.strip()) > 1:
            yield item.strip()
        yield from _names_in_json(item, depth - 1)
    if isinstance(value, dict) and {"status", "name", "text"} <= value.keys() and isinstance(value["name"], str):
        yield value["name"]  # of maintenance.json: what the cloud calls the machine
