#!/usr/bin/python3 -I
"""ansible-playbook on a node, from the archive beside it: bin/ansible-playbook there (configure/node_archive.py).

It ends with the process that started it, and takes the archive's packed modules.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
ROOT = Path(__file__).resolve().parents[1]


def take_packed_modules() -> None:
    """Put the archive's modules where Ansible looks before it packs one."""
    from ansible import constants  # type: ignore[attr-defined]

    folder = Path(constants.DEFAULT_LOCAL_TMP) / "ansiballz_cache"
    folder.mkdir(exist_ok=True)
    for module in (ROOT / "modules").iterdir():
        with contextlib.suppress(FileExistsError):
            (folder / module.name).symlink_to(module)


def main() -> int:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        return 1
    sys.path.insert(0, str(ROOT / "lib"))
    # Each task is a process that this one forks. A look for garbage there copies all memory that they share.
    gc.disable()
    from ansible.cli.playbook import main as playbook

    take_packed_modules()
    gc.freeze()
    playbook(sys.argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
