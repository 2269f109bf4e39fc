"""The file of Alertmanager's receivers that cluster.yaml names (monitoring.prometheus.receivers)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from provisioner.common import regular_file, yaml_text
from provisioner.common.errors import GpuprovError
from provisioner.common.suggest import did_you_mean

NAMES = ("page", "ticket", "watchdog", "nobody")
"""Where the routes send alerts: by severity, the dead man's switch, and what nobody is told."""
SIZE = 1 << 20
"""Bytes of the file at most."""
EXAMPLE = "receivers: [{name: page, webhook_configs: [{url: …}]}]"


def read(file: Path) -> tuple[str, ...]:
    """The names of the receivers in a file. Their settings are Alertmanager's to judge: it does on the head node,
    before it takes them. Raises GpuprovError; no message repeats a value, which may be a secret."""
    try:
        document = yaml_text.load(regular_file.read_text(file, SIZE))
    except OSError as error:
        raise _error(file, f"cannot be read: {error.strerror or error}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        raise GpuprovError(f"this is not YAML: {error.problem}", where=at) from None
    except (ValueError, yaml.YAMLError):
        raise _error(file, "this is not YAML") from None
    return tuple(_names(file, document))


def _names(file: Path, document: Any) -> list[str]:
    rows = document.get("receivers") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise _error(file, "there is no list `receivers`", f"such as {EXAMPLE}")
    if more := sorted(map(str, document.keys() - {"receivers"})):
        raise _error(file, f"`{more[0]}` is not read: the routes are gpuprov's", "leave receivers alone in the file")
    names = [str(row.get("name")) for row in rows]
    for name in names:
        if name not in NAMES:
            hint = did_you_mean(name, NAMES) or f"one of {', '.join(NAMES)}"
            raise _error(file, f"no route leads to a receiver {name[:40]!r}", hint)
    if len(names) > len({*names}):
        raise _error(file, "two receivers have one name", "write all settings of a name into one receiver")
    return names


def _error(file: Path, message: str, hint: str = "") -> GpuprovError:
    return GpuprovError(message, where=str(file), hint=hint)
