"""Users and passwords of BMCs: from the environment or a file that nobody else may read; never from cluster.yaml."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from provisioner.common import regular_file, yaml_text
from provisioner.machines.redfish.errors import BmcError

_MOST = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Account:
    """A user of a BMC. The password is in no `repr`."""

    user: str
    password: str = field(repr=False)


FACTORY = frozenset({
    ("root", "calvin"),
    ("ADMIN", "ADMIN"),
    ("USERID", "PASSW0RD"),
    ("admin", "admin"),
    ("root", "0penBmc"),
    ("root", "superuser"),
    ("root", "changeme"),
    ("qct.admin", "qct.admin"),
})  # fmt: skip
"""Users and passwords with which makers deliver BMCs: Dell (CMC 3.0 User's Guide, default password warning), Supermicro
and Lenovo (before they gave each machine its own), NVIDIA DGX GB200 (Firmware Update Guide, BMC credentials and factory
reset) and others of AMI's firmware, OpenBMC, Intel (Server Management Guide, table 11), Oracle, Quanta."""


def is_factory(account: Account) -> bool:
    """Whether anybody who can reach the BMC knows the password: its maker has published it."""
    return (account.user, account.password) in FACTORY


def find(source: str, host: str, bmc: str, base: Path) -> Account:
    """The account for one machine. `source`: `env:NAME` (NAME_USER and NAME_PASSWORD) or `file:PATH`, relative to
    `base`, the folder of cluster.yaml. Raises BmcError where there is none, naming the machine."""
    kind, _, reference = source.partition(":")
    if kind == "env":
        return _of_environment(reference, os.environ, host)
    if kind != "file":
        raise BmcError(f"credentials {source!r} are missing", where=host, hint="credentials: env:BMC or file:bmc.yaml")
    return _of_file(base / Path(reference).expanduser(), host, bmc)


def _of_environment(name: str, environment: Mapping[str, str], host: str) -> Account:
    missing = [variable for variable in (f"{name}_USER", f"{name}_PASSWORD") if not environment.get(variable)]
    if missing:
        raise BmcError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set", where=host, kind="credentials",
            hint=f"export {name}_USER and {name}_PASSWORD before gpuprov runs; sudo needs --preserve-env for them",
        )  # fmt: skip
    return Account(environment[f"{name}_USER"], environment[f"{name}_PASSWORD"])


def _of_file(path: Path, host: str, bmc: str) -> Account:
    """A file of one YAML mapping: host, BMC or `all` → {user: …, password: …}; the nearest name counts."""
    hint = "one line a machine, or for all: `all: {user: admin, password: …}`"
    try:
        with regular_file.opened(path) as file:
            about = os.fstat(file.fileno())
            if stat.S_IMODE(about.st_mode) & 0o077:
                raise BmcError(
                    "others may read this file", where=str(path), kind="credentials", hint=f"chmod 600 {path}"
                )
            if about.st_uid not in (0, os.getuid(), int(os.environ.get("SUDO_UID", os.getuid()))):
                raise BmcError(
                    "belongs to another user", where=str(path), kind="credentials", hint=f"chown {path} to you"
                )
            document = yaml_text.load(file.read(_MOST))
    except OSError as error:
        raise BmcError(
            f"the file of the BMCs' users and passwords (credentials) cannot be read: {error.strerror}",
            where=str(path), kind="credentials", hint=f"make it, mode 0600: {hint}",
        ) from error  # fmt: skip
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # The error's own text has a piece of the file, which may be a password.
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        position = f"{path}:{line + 1}" if isinstance(line, int) else str(path)
        raise BmcError("is not YAML", where=position, kind="credentials", hint=hint) from None
    rows = document if isinstance(document, Mapping) else {}
    name = next((name for name in (host, bmc, "all") if name in rows), None)
    if name is None:
        message = f"has no user and password for {host}: no line for {host}, {bmc} or all"
        raise BmcError(message, where=str(path), kind="credentials", hint=hint)
    row, values = rows[name], list[str]()
    for key in ("user", "password"):  # no value is told, and no key that is not known: either may be a password
        value = row.get(key) if isinstance(row, Mapping) else None
        if not isinstance(value, str) or not value:
            wrong = f"its {key} is no text: quote it" if value not in (None, "") else f"it has no {key}"
            message = f"has no user and password for {host}: the line {name} is read, and {wrong}"
            raise BmcError(message, where=str(path), kind="credentials", hint=hint)
        values.append(value)
    return Account(*values)
