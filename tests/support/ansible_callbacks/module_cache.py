"""Modules that one run of Ansible has packed serve the next one.

Ansible packs each module with all that it imports, anew in every run: a third of the processor time that `up` takes on
the control machine for one node. A run of the tests has hundreds of them, all with the same modules. They are kept in
the folder that GPUPROV_TEST_MODULES names, one for each run of the tests.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

from ansible import constants

DOCUMENTATION = """
name: module_cache
type: aggregate
short_description: keep packed modules between runs
description: [see above]
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Ansible's names for what is called at the beginning and at the end of a run."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "module_cache"
    CALLBACK_NEEDS_ENABLED = False

    def v2_playbook_on_start(self, playbook: Any) -> None:
        copy(saved_modules(), local_modules())

    def v2_playbook_on_stats(self, stats: Any) -> None:
        copy(local_modules(), saved_modules())


def saved_modules() -> Path:
    return Path(os.environ["GPUPROV_TEST_MODULES"])


def local_modules() -> Path:
    """Where this run of Ansible looks before it packs a module."""
    return Path(constants.DEFAULT_LOCAL_TMP) / "ansiballz_cache"


def copy(source: Path, target: Path) -> None:
    """Copy packed modules, each whole or not at all: several runs may do that at once."""
    target.mkdir(parents=True, exist_ok=True)
    for packed in source.glob("*-ZIP_DEFLATED-none"):
        if not (target / packed.name).exists():
            with tempfile.TemporaryDirectory(dir=target) as folder:
                shutil.copyfile(packed, Path(folder, packed.name)).rename(target / packed.name)
