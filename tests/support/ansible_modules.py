"""Our Ansible modules and what they share, imported as on a node: `ansible.module_utils` finds our files too."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

PLUGINS = Path(__file__).resolve().parents[2] / "ansible" / "plugins"


def shared(name: str) -> ModuleType:
    """A file of ansible/plugins/module_utils."""
    import ansible.module_utils as theirs

    folder = str(PLUGINS / "module_utils")
    if folder not in theirs.__path__:
        theirs.__path__.append(folder)
    return importlib.import_module(f"ansible.module_utils.{name}")


def module(name: str) -> ModuleType:
    """A file of ansible/plugins/modules."""
    for file in (PLUGINS / "module_utils").glob("*.py"):
        shared(file.stem)
    spec = importlib.util.spec_from_file_location(f"gpuprov_module_{name}", PLUGINS / "modules" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
