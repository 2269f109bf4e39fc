"""Packs the modules of the roles as Ansible packs each of them once in a run. Prints a JSON object: name in Ansible's
cache → the file's content, hexadecimal. A process of its own (configure/node_archive.py)."""

from __future__ import annotations

import base64
import io
import json
import sys
import tempfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path

from provisioner.common import paths

OF_ANSIBLE = ("command", "copy", "file", "setup", "stat", "systemd_service")
"""Modules of ansible-core that roles run on a node."""
EPOCH = datetime(1980, 1, 1, tzinfo=UTC)
"""The same modules give the same files."""
KIND = "ZIP_DEFLATED-none"
"""End of a name in Ansible's cache: the compression, and no extension of a debugger."""


def main() -> int:
    import ansible.modules
    from ansible.plugins.loader import init_plugin_loader, module_utils_loader

    root, builtin = paths.data("ansible"), Path(ansible.modules.__path__[0])
    init_plugin_loader([])
    module_utils_loader.add_directory(str(root / "plugins" / "module_utils"))
    module_files = sorted([*(root / "plugins" / "modules").glob("*.py"), *(root / "roles").glob("*/library/*.py")])
    files = {f"ansible.legacy.{file.stem}": file for file in module_files}
    files |= {f"ansible.modules.{name}": builtin / f"{name}.py" for name in OF_ANSIBLE}
    json.dump({f"{name}-{KIND}": _packed(name, file).hex() for name, file in files.items()}, sys.stdout)
    return 0


def _packed(name: str, file: Path) -> bytes:
    """A module in the form of Ansible's own cache."""
    from ansible.executor import module_common
    from ansible.executor.module_common import _builder, _CachedModule

    content, stream, extensions = file.read_bytes(), io.BytesIO(), _builder.ExtensionManager()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as target:
        described = module_common.recursive_finder(file.stem, name, content, target, EPOCH, extensions)
        module_common._add_module_to_zip(target, EPOCH, name, content, file.name, extensions)
    cached = _CachedModule(zip_data=base64.b64encode(stream.getvalue()), metadata=described, source_mapping={})
    with tempfile.TemporaryDirectory() as folder:
        cached.dump(f"{folder}/{file.stem}")
        return Path(folder, file.stem).read_bytes()


if __name__ == "__main__":
    sys.exit(main())
