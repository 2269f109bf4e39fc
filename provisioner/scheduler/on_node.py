"""Runs as root on a node: takes it into its Slurm cluster. Its request is {"key": BASE64, "marker": PATH}.

Only the standard library of Python 3.8 and later: its source is sent to the node, followed by a call of `main`
(transport/root_program.py). The key is munge's: whoever has it is every user of the cluster. It stands in no argument
and in no file but munge's own.
"""

from __future__ import annotations

import base64
import json
import os
import pwd
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    def note_file(path: str, content: bytes | str | None = None) -> None:
        """Of ansible/plugins/module_utils/gpuprov_record.py, which goes before this text (lifecycle/slurm.py)."""

    def note(kind: str, names: Sequence[str]) -> None:
        """Likewise."""


KEY_FILE = Path("/etc/munge/munge.key")
PENDING = Path("/var/lib/gpuprov/slurm-key-is-new")
"""There while munge and slurmd have not read the key that was written."""
SLURMD, MUNGE = "slurmd.service", "munge.service"
DEADLINE_S = 120


class Failed(Exception):
    """A unit that does not start."""


def systemctl(*arguments: str) -> None:
    """Raises Failed."""
    try:
        done = subprocess.run(
            ["systemctl", *arguments],
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"systemctl {' '.join(arguments)}: {error}") from error
    if done.returncode:
        raise Failed(f"systemctl {' '.join(arguments)}: {(done.stderr or done.stdout).strip()[-500:]}")


def is_active(unit: str) -> bool:
    """Whether a unit runs."""
    return subprocess.run(["systemctl", "is-active", "--quiet", unit], check=False, timeout=DEADLINE_S).returncode == 0


def put_key(key: bytes) -> bool:
    """Have munge's key be this one; whether munge has to read it still."""
    if KEY_FILE.exists() and KEY_FILE.read_bytes() == key:
        return PENDING.exists()
    PENDING.touch()  # killed before munge has read it, the next join restarts munge
    note_file(str(KEY_FILE), key)
    owner = pwd.getpwnam("munge")
    fresh = KEY_FILE.with_suffix(".gpuprov")
    if os.path.lexists(fresh):
        fresh.unlink()
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "wb") as stream:
        os.fchown(stream.fileno(), owner.pw_uid, owner.pw_gid)
        stream.write(key)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(KEY_FILE)
    return True


def join(key: bytes, marker: str) -> None:
    """Raises Failed, OSError. What it changes is in the record of a machine of one's own."""
    Path(marker).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    is_new = put_key(key)
    if is_new or not is_active(MUNGE):
        systemctl("restart", MUNGE)
    text = "Written by gpuprov: the node is proven, and slurmd may run.\n"
    note_file(marker, text)
    Path(marker).write_text(text, encoding="utf-8")
    note("units", [SLURMD])
    systemctl("daemon-reload")
    systemctl("--quiet", "enable", SLURMD)
    if is_new or not is_active(SLURMD):
        systemctl("restart", SLURMD)
    if not is_active(SLURMD):
        raise Failed(f"{SLURMD} does not run: `journalctl -u slurmd` says why")
    PENDING.unlink(missing_ok=True)


def main(request: dict[str, Any]) -> None:
    """Do what is asked, and print an answer."""
    answer = {}
    try:
        join(base64.b64decode(request["key"]), request["marker"])
    except KeyError:
        answer["error"] = "munge is not installed: `gpuprov up` installs it"
    except (Failed, OSError, subprocess.TimeoutExpired) as error:
        answer["error"] = str(error)
    print("gpuprov:" + json.dumps(answer))
