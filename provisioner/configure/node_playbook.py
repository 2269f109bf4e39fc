#!/usr/bin/python3 -I
"""ansible-playbook on a node, from the archive beside it: bin/ansible-playbook there (configure/node_archive.py).

It ends with the process that started it, and takes the archive's packed modules. Ansible reads 470 KB of its own YAML
at each start; the archive has it as JSON, because Python without libyaml takes half a second for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

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


def read_json_as_yaml() -> None:
    """Have PyYAML's plain loaders read JSON as JSON, which is YAML, too."""
    import yaml

    load, plain_loaders = yaml.load, (yaml.SafeLoader, yaml.BaseLoader)

    def load_quickly(stream: Any, Loader: Any) -> Any:
        text = stream.read() if hasattr(stream, "read") else stream
        if Loader in plain_loaders and text[:1] in ("{", b"{"):
            with contextlib.suppress(ValueError):
                return json.loads(text)
        return load(text, Loader)

    yaml.load = load_quickly


def main() -> int:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        return 1
    sys.path.insert(0, str(ROOT / "lib"))
    # Each task is a process that this one forks. A look for garbage there copies all memory that they share.
    gc.disable()
    read_json_as_yaml()
    from ansible.cli.playbook import main as playbook

    take_packed_modules()
    gc.freeze()
    playbook(sys.argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
