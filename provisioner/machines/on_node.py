"""Runs as root on a machine that was there before gpuprov: begins the record of what is changed there, and undoes it.

Only the standard library of Python 3.8 and later: its source is sent to the machine, followed by a call of `main`. The
modules of the roles write the record (ansible/plugins/module_utils/gpuprov_record.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Any

FOLDER = "/var/lib/gpuprov/before"
UNITS = Path("/etc/systemd/system")
OWN_FILES = ("/usr/local/lib/gpuprov-health.pyz", "/var/lib/apt/lists/gpuprov-read")
"""Files of gpuprov that no module notes; their names are nobody else's."""
OWN_FOLDERS = ("/var/lib/gpuprov/repositories",)
DEADLINE_S = 120
DGX_RELEASE = "/etc/dgx-release"
"""Written by DGX OS: the version of its build and, after an update over the air, of that (seen of a DGX A100)."""


def main(request: dict[str, Any]) -> None:
    """Do what is asked (`do`: begin or undo), and print an answer."""
    actions = {"begin": begin, "undo": undo}
    print("gpuprov:" + json.dumps(actions[request["do"]](request)))


def begin(request: dict[str, Any]) -> dict[str, Any]:
    """Begin the record, or find it begun by the same cluster. A system that a vendor has put together with drivers and
    container tools of its own is told, and left alone."""
    folder = Path(request.get("folder", FOLDER))
    record = _record(folder)
    if record is None and (vendors := _dgx_os(Path(request.get("dgx", DGX_RELEASE)))):
        return {"vendors": vendors}
    if record is None:
        folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        fresh = {"format": 1, "cluster": request["cluster"], "identity": request["identity"], "files": {}}
        (folder / "record.new").write_text(json.dumps(fresh), encoding="utf-8")
        (folder / "record.new").replace(folder / "record.json")
    elif record["identity"] != request["identity"]:
        return {"foreign": record["cluster"]}
    return {"ok": True}


def undo(request: dict[str, Any]) -> dict[str, Any]:
    """Put back what the record says was changed; says what was done and what stays. Can be repeated."""
    folder = Path(request.get("folder", FOLDER))
    record = _record(folder)
    done: list[str] = []
    stays: list[str] = []
    if record is not None and record["identity"] != request["identity"]:
        return {"foreign": record["cluster"]}
    if record is not None:
        _units(record, done, stays)
        _files(record, done, stays)
        _holds(record, done, stays)
        if packages := record.get("packages", []):
            stays.append(f"{len(packages)} packages: {', '.join(packages)}")
        stays.append("container images, local disks that were made a scratch file system, and their data")
        stays.append("settings of the running kernel and loaded modules, until the next boot")
        for gone in (*OWN_FOLDERS, str(folder)):
            shutil.rmtree(gone, ignore_errors=gone != str(folder))
        with contextlib.suppress(OSError):
            folder.parent.rmdir()
    _key(request, done)  # last: without it there may be no way back here
    return {"done": done, "stays": stays}


def _dgx_os(file: Path) -> str:
    """The DGX OS that is installed; empty for any other system."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    found = {key: value.strip().strip('"') for key, _, value in (line.partition("=") for line in lines)}
    version = found.get("DGX_OTA_VERSION") or found.get("DGX_SWBUILD_VERSION") or "of an unknown version"
    return f"DGX OS {version} ({found.get('DGX_PLATFORM') or found.get('DGX_PRETTY_NAME') or 'DGX'})"[:120]


def _record(folder: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found


def _run(*argv: str) -> tuple[int, str]:
    """Exit status, and the last line that was printed."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, ((done.stdout + done.stderr).strip().splitlines() or [f"{argv[0]} failed"])[-1]


def _units(record: dict[str, Any], done: list[str], stays: list[str]) -> None:
    """Stop units that are gpuprov's own, and those that it enabled; the others of the machine run on."""
    files = [Path(path) for path, entry in record["files"].items() if entry["before"] is None and "link" not in entry]
    own = {path.name for path in files if path.parent == UNITS and path.exists()}
    # Timers first: they would start their service once more.
    wanted = sorted(own | set(record.get("units", [])), key=lambda name: (not name.endswith(".timer"), name))
    for name in wanted:
        code, said = _run("systemctl", "disable", "--now", name)
        if code == 0:
            done.append(f"{name} stopped and disabled")
        elif "does not exist" not in said and "not loaded" not in said:
            stays.append(f"{name}: {said}")


def _files(record: dict[str, Any], done: list[str], stays: list[str]) -> None:
    for name, entry in record["files"].items():
        path, now = Path(name), _digest(Path(name))
        if now is not None and now != entry["sha256"]:
            stays.append(f"{name}: changed since gpuprov wrote it")
        elif entry["before"] is not None and Path(entry["before"]).exists():
            kept, part = Path(entry["before"]), path.with_name(path.name + ".gpuprov-back")
            shutil.copy2(kept, part)
            seen = kept.stat()
            os.chown(part, seen.st_uid, seen.st_gid)
            part.replace(path)
            done.append(f"{name} as it was before")
        elif "link" in entry:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            path.symlink_to(entry["link"])
            done.append(f"{name} as it was before")
        elif now is not None:
            _remove(path, done)
    for path in map(Path, OWN_FILES):
        if path.exists():
            _remove(path, done)
    _run("systemctl", "daemon-reload")


def _remove(path: Path, done: list[str]) -> None:
    path.unlink()
    done.append(f"{path} removed")
    if "gpuprov" in path.parent.name or path.parent.name.endswith((".service.d", ".conf.d")):
        with contextlib.suppress(OSError):  # others have files there
            path.parent.rmdir()


def _digest(path: Path) -> str | None:
    """SHA-256 of a file; None where there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return ""


def _holds(record: dict[str, Any], done: list[str], stays: list[str]) -> None:
    if holds := record.get("holds", []):
        code, said = _run("apt-mark", "unhold", *holds)
        if code == 0:
            done.append(f"{len(holds)} packages are held no more")
        else:
            stays.append(f"holds of {len(holds)} packages: {said}")


def _key(request: dict[str, Any], done: list[str]) -> None:
    """Take the line out of authorized_keys that gpuprov has put there."""
    if not request.get("key"):
        return
    home = request.get("home") or pwd.getpwnam(request["user"]).pw_dir
    path = Path(home, ".ssh", "authorized_keys")
    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines(keepends=True)
    except FileNotFoundError:
        return
    kept = [line for line in lines if line.strip() != request["key"]]
    if len(kept) != len(lines):
        path.write_text("".join(kept), encoding="utf-8", errors="surrogateescape")  # owner and mode stay
        done.append(f"gpuprov's key taken out of {path}")
