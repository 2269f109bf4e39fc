"""Hosts from an Ansible inventory in its INI form: sections are groups, a line is a host and its variables.

Only what gpuprov uses is read, and the rest is refused: an inventory can name programs that Ansible runs, and a file
that is only checked must run none.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from provisioner.common import regular_file

LIMIT = 4 << 20
LINE = 4096
"""Characters of a line: shlex takes the square of them."""
KEYS = {
    "ansible_host": "address", "ansible_port": "port", "ansible_user": "user", "jump": "jump", "bmc": "bmc",
    "serial": "serial", "mac": "mac",
}  # fmt: skip
"""Variables of a host that are read, and the key of `hosts` that each stands for."""
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.,:\[\]-]*")
_WORD = re.compile(r"[A-Za-z_]{1,40}")
_SECTION = re.compile(r"\[([A-Za-z0-9_.:-]+)\]")


class InventoryError(ValueError):
    """What is wrong, with FILE:LINE."""


@dataclass(frozen=True, slots=True)
class Line:
    """A host, or a range of them. `keys`: by their name in cluster.yaml; `where`: FILE:LINE."""

    pattern: str
    group: str
    keys: dict[str, str]
    where: str


def read(path: str) -> list[Line]:
    """The hosts of a file. Raises InventoryError for a file that can't be read, and for what is not understood."""
    file = Path(path)
    try:
        text = regular_file.read_text(file, LIMIT)
    except OSError as error:
        raise InventoryError(f"cannot read {file.name}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InventoryError(f"{file.name} is not a text file") from None
    lines, group = [], ""
    for number, line in enumerate(text.splitlines(), 1):
        position, content = f"{file.name}:{number}", line.strip()
        if not content or content[0] in "#;":
            continue
        if len(content) > LINE:
            raise InventoryError(f"{position}: the line is longer than {LINE} characters")
        if section := _SECTION.fullmatch(content):
            group = section[1]
            if ":" in group:
                raise InventoryError(f"{position}: [{group}] is not read: sections are groups of hosts here")
            continue
        lines.append(_host(content, "" if group in ("all", "ungrouped") else group, position))
    return lines


def _host(content: str, group: str, position: str) -> Line:
    try:
        name, *arguments = shlex.split(content, comments=True)
    except ValueError as error:
        raise InventoryError(f"{position}: {str(error).lower()}") from None
    if not _HOST.fullmatch(name):  # what stands there is not shown: the path may name a file of secrets
        raise InventoryError(f"{position}: neither a host nor a section")
    keys = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key not in KEYS:
            key_text = key if equals and _WORD.fullmatch(key) else "this"
            raise InventoryError(f"{position}: {key_text} is not read here; known: {', '.join(KEYS)}")
        keys[KEYS[key]] = value
    return Line(name, group, keys, position)
