"""What gpuprov changes on a machine that was there before it: kept on that machine, so that `gpuprov down` can undo it.

There is a record only where gpuprov has made one at first contact, on machines that it did not create; elsewhere nothing
is noted.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile

FOLDER = "/var/lib/gpuprov/before"


def _load(folder):
    try:
        with open(os.path.join(folder, "record.json"), encoding="utf-8") as stream:
            return json.load(stream)
    except FileNotFoundError:
        return None


def _save(folder, record):
    handle, fresh = tempfile.mkstemp(dir=folder)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        json.dump(record, stream, indent=1, sort_keys=True)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(fresh, os.path.join(folder, "record.json"))


def note_file(path, content=None, folder=FOLDER):
    """A file is about to be written, or removed where `content` is None: keep what was there before gpuprov, and what it
    is now. A record that can't be written is an error: the file would never be put back."""
    record = _load(folder)
    if record is None:
        return
    entry = record["files"].get(path)
    if entry is None:
        entry = record["files"][path] = {"before": None}
        if os.path.lexists(path):
            backup = os.path.join(folder, str(len(record["files"])))
            if os.path.islink(path):
                entry["link"] = os.readlink(path)
            else:
                shutil.copy2(path, backup)
                status = os.stat(path)
                os.chown(backup, status.st_uid, status.st_gid)
                entry["before"] = backup
    if isinstance(content, str):
        content = content.encode("utf-8", "surrogateescape")
    entry["sha256"] = None if content is None else hashlib.sha256(content).hexdigest()
    _save(folder, record)


def note(kind, names, folder=FOLDER):
    """Names were added to a list of the record (holds, units, packages)."""
    record = _load(folder)
    if record is None or not names:
        return
    record[kind] = sorted(set(record.get(kind, [])) | set(names))
    _save(folder, record)
