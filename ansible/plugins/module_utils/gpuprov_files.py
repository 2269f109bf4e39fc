"""Files of a node that gpuprov writes: whole or not at all."""

from __future__ import annotations

import os
import tempfile

from ansible.module_utils.gpuprov_record import note_file


def read(path):
    """The text of a file; None where there is none, or none that can be read."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, ValueError):
        return None


def put(module, path, text, mode=0o644):
    """Have the file hold this text, in a folder that is made where it is missing. Nobody ever sees half of it."""
    note_file(path, text)
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    handle, fresh = tempfile.mkstemp(dir=module.tmpdir)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(fresh, mode)
    module.atomic_move(fresh, path)
    os.chmod(path, mode)  # atomic_move keeps that of the file that was there
