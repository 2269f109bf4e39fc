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
import tempfile
import time
from pathlib import Path
from typing import Any

FOLDER = "/var/lib/gpuprov/before"
UNITS = Path("/etc/systemd/system")
OWN_FILES = ("/usr/local/lib/gpuprov-health.pyz", "/var/lib/apt/lists/gpuprov-read")
"""Files of gpuprov that no module notes; their names are nobody else's."""
OWN_FOLDERS = ("/var/lib/gpuprov/repositories", "/var/lib/gpuprov/health", "/var/lib/gpuprov/worker")
DEADLINE_S = 120
DGX_RELEASE = "/etc/dgx-release"
"""Written by DGX OS: the version of its build and, after an update over the air, of that (seen of a DGX A100)."""


class Damaged(Exception):
    """The record can't be read: what was changed here is not known."""


def main(request: dict[str, Any]) -> None:
    """Do what is asked (`do`: begin or undo), and print an answer."""
    actions = {"begin": begin, "undo": undo}
    try:
        answer = actions[request["do"]](request)
    except Damaged as error:
        answer = {"damaged": str(error)}
    except OSError as error:
        answer = {"failed": str(error)}
    print("gpuprov:" + json.dumps(answer))


def begin(request: dict[str, Any]) -> dict[str, Any]:
    """Begin the record, or find it begun by the same cluster. A system that a vendor has put together with drivers and
    container tools of its own is told, and left alone; so is another host of the cluster than the one that is asked
    for (`host`: its name in cluster.yaml; `others`: those of the cluster's other hosts)."""
    folder = Path(request.get("folder", FOLDER))
    record = _record(folder)
    if record is None and (vendors := _dgx_os(Path(request.get("dgx", DGX_RELEASE)))):
        return {"vendors": vendors}
    if record is None:
        folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        names = {key: request[key] for key in ("cluster", "identity", "host")}
        _write(folder, {"format": 1, **names, "files": {}})
    elif refused := _refusal(record, request):
        return refused
    elif record["host"] != request["host"]:  # another name for it in cluster.yaml
        _write(folder, {**record, "host": request["host"]})
    return {"ok": True, "new": record is None}


def undo(request: dict[str, Any]) -> dict[str, Any]:
    """Put back what the record says was changed; says what was done and what stays. Can be repeated. Where a file could
    not be put back, the backups are kept, and `stays` says where. `failed`: gpuprov's key is still let in."""
    folder = Path(request.get("folder", FOLDER))
    record = _record(folder)
    done: list[str] = []
    stays: list[str] = []
    if record is not None and (refused := _refusal(record, request)):
        return refused
    if record is not None:
        _units(record, done, stays)
        backups = folder.with_name(f"kept-{int(time.time())}")
        is_complete = _files(record, done, stays, backups)
        _holds(record, done, stays)
        if packages := record.get("packages", []):
            stays.append(f"{len(packages)} packages: {', '.join(packages)}")
        stays.append("container images, local disks that were made a scratch file system, and their data")
        stays.append("settings of the running kernel and loaded modules, until the next boot")
        for own_folder in OWN_FOLDERS:
            shutil.rmtree(own_folder, ignore_errors=True)
        if is_complete:
            shutil.rmtree(folder)
        else:
            folder.rename(backups)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()
    answer: dict[str, Any] = {"done": done, "stays": stays}
    if failed := _key(request, done):  # last: without it there may be no way back here
        answer["failed"] = failed
    return answer


def _refusal(record: dict[str, Any], request: dict[str, Any]) -> dict[str, Any] | None:
    """What is answered where this is another cluster's machine, or another one of the same cluster."""
    if record["identity"] != request["identity"]:
        return {"foreign": record["cluster"], "identity": record["identity"]}
    if record["host"] != request["host"] and record["host"] in request["others"]:
        return {"other": record["host"]}
    return None


def _write(folder: Path, record: dict[str, Any]) -> None:
    with (folder / "record.new").open("w", encoding="utf-8") as stream:
        stream.write(json.dumps(record))
        stream.flush()
        os.fsync(stream.fileno())
    (folder / "record.new").replace(folder / "record.json")


def _dgx_os(file: Path) -> str:
    """The DGX OS that is installed; empty for any other system."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    fields = {key: value.strip().strip('"') for key, _, value in (line.partition("=") for line in lines)}
    version = fields.get("DGX_OTA_VERSION") or fields.get("DGX_SWBUILD_VERSION") or "of an unknown version"
    return f"DGX OS {version} ({fields.get('DGX_PLATFORM') or fields.get('DGX_PRETTY_NAME') or 'DGX'})"[:120]


def _record(folder: Path) -> dict[str, Any] | None:
    """None where there is none. Raises Damaged."""
    file = folder / "record.json"
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{file}: {error}") from None
    if not _is_record(record):
        raise Damaged(f"{file}: it is no record of what gpuprov changed")
    return record


def _is_record(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(key), str) for key in ("cluster", "identity", "host"))
        and all(isinstance(value.get(key, []), list) for key in ("holds", "packages", "units"))
        and isinstance(value.get("files"), dict)
        and all(isinstance(entry, dict) and {"before", "sha256"} <= set(entry) for entry in value["files"].values())
    )


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
    own_units = {path.name for path in files if path.parent == UNITS and path.exists()}
    # Timers first: they would start their service once more.
    units = sorted(own_units | set(record.get("units", [])), key=lambda name: (not name.endswith(".timer"), name))
    for name in units:
        code, output = _run("systemctl", "disable", "--now", name)
        if code == 0:
            done.append(f"{name} stopped and disabled")
        elif "does not exist" not in output and "not loaded" not in output:
            stays.append(f"{name}: {output}")


def _files(record: dict[str, Any], done: list[str], stays: list[str], backups: Path) -> bool:
    """Put files back, each for itself: what keeps one from it is said, and the others go on. `kept`: where the backups
    will lie if one is still needed; gives whether none is."""
    is_complete = True
    for name, entry in record["files"].items():
        path, digest, backup = Path(name), _digest(Path(name)), entry["before"]
        try:
            if digest is not None and digest != entry["sha256"]:
                stays.append(f"{name}: changed since gpuprov wrote it")
            elif backup is not None and not Path(backup).exists():
                stays.append(f"{name}: its backup {backup} is missing")
            elif backup is not None:
                _put_back(Path(backup), path)
                done.append(f"{name} as it was before")
            elif "link" in entry:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
                path.symlink_to(entry["link"])
                done.append(f"{name} as it was before")
            elif digest is not None:
                _remove(path, done)
        except OSError as error:
            if backup is not None:
                is_complete = False
                stays.append(f"{name}: not put back: {error.strerror}; its backup is {backups / Path(backup).name}")
            elif "link" in entry:
                stays.append(f"{name}: not put back: {error.strerror}; it was a link to {entry['link']}")
            else:
                stays.append(f"{name}: not removed: {error.strerror}")
    for path in map(Path, OWN_FILES):
        try:
            if path.exists():
                _remove(path, done)
        except OSError as error:
            stays.append(f"{path}: not removed: {error.strerror}")
    _run("systemctl", "daemon-reload")
    return is_complete


def _put_back(backup: Path, path: Path) -> None:
    part = path.with_name(path.name + ".gpuprov-back")
    try:
        shutil.copy2(backup, part)
        status = backup.stat()
        os.chown(part, status.st_uid, status.st_gid)
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


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
        code, output = _run("apt-mark", "unhold", *holds)
        if code == 0:
            done.append(f"{len(holds)} packages are held no more")
        else:
            stays.append(f"holds of {len(holds)} packages: {output}")


def _key(request: dict[str, Any], done: list[str]) -> str:
    """Take the line out of authorized_keys that gpuprov has put there; gives why it is still in it, if it is."""
    if not request.get("key"):
        return ""
    home = request.get("home") or pwd.getpwnam(request["user"]).pw_dir
    path = Path(home, ".ssh", "authorized_keys")
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as stream:
            lines, status = list(stream), os.fstat(stream.fileno())
        remaining = [line for line in lines if line.strip() != request["key"]]
        if len(remaining) != len(lines):
            _replace(Path(os.path.realpath(path)), "".join(remaining).encode("utf-8", "surrogateescape"), status)
            done.append(f"gpuprov's key taken out of {path}")
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"gpuprov's key could not be taken out of {path}: {error.strerror}"
    return ""


def _replace(path: Path, content: bytes, status: os.stat_result) -> None:
    """Another content for a file, whole or not at all, of the same owner and mode. By the open file alone: a folder in
    somebody's home may change meanwhile."""
    handle, fresh = tempfile.mkstemp(prefix=".gpuprov-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fchown(stream.fileno(), status.st_uid, status.st_gid)
            os.fchmod(stream.fileno(), status.st_mode & 0o7777)
            os.fsync(stream.fileno())
        Path(fresh).replace(path)
    except OSError:
        Path(fresh).unlink()
        raise
