"""apt and dpkg for our modules: waiting for their lock, one call with a deadline, and what went wrong in plain words.

Written for the Python of the nodes (3.10 and later), with nothing but the standard library.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import time

LOCKS = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", "/var/lib/apt/lists/lock", "/var/cache/apt/archives/lock")
"""Files that apt and dpkg lock (fcntl), in the order in which they do."""

DEADLINE_S = 3600
"""What one call may take: a driver with its DKMS build and a CUDA toolkit over a slow line."""

ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "APT_LISTCHANGES_FRONTEND": "none",
    # needrestart on Ubuntu would restart daemons of running jobs, or ask.
    "NEEDRESTART_SUSPEND": "1",
    "LC_ALL": "C",
}

PASSING = (
    r"\b(429|500|502|503|504)\b",
    r"Hash Sum mismatch",
    r"[Uu]nexpected size",
    r"Connection (failed|timed out|refused|reset)",
    r"Could not connect",
    r"Connection closed prematurely",
    r"Error reading from server",
    r"Temporary failure resolving",
    r"Undetermined Error",
    r"Data left in buffer|Unable to fetch some archives",
)
"""What a repository may have for a minute; worth another try."""


class AptError(Exception):
    """What happened, in words for the person at the other end.

    `passing`: it may be over in a minute. `url`: of the repository or file, where one is to blame. `absent`: no
    repository has a package.
    """

    def __init__(self, message, passing=False, url="", absent=False):
        super().__init__(message)
        self.passing, self.url, self.absent = passing, url, absent


def holder(path):
    """The process that holds a lock file, as "apt-get upgrade (pid 123)"; None where nobody does."""
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError:
        return None  # apt makes the file when it first locks it
    try:
        # struct flock on 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid
        request = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _whence, _start, _length, pid = struct.unpack("hhqqi", fcntl.fcntl(handle, fcntl.F_GETLK, request))
    finally:
        os.close(handle)
    if kind == fcntl.F_UNLCK:
        return None
    return f"{command_of(pid)} (pid {pid})"


def command_of(pid):
    """The command line of a process, at most 120 characters."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            arguments = stream.read().replace(b"\0", b" ").decode(errors="replace").split()
    except OSError:
        arguments = []
    return " ".join(arguments)[:120] or "a process that has ended"


def wait_for_lock(timeout):
    """Return when nobody holds apt's locks; AptError naming the holder when that takes more than `timeout` seconds."""
    until = time.monotonic() + timeout
    while True:
        lock = next(((path, process) for path in LOCKS for process in [holder(path)] if process), None)
        if lock is None:
            return
        if time.monotonic() >= until:
            raise AptError(
                f"apt is locked: {lock[1]} has held {lock[0]} for longer than the {timeout} s that were waited. "
                "Wait for it or end it, then run again"
            )
        time.sleep(0.5)


def call(module, command, lock_timeout):
    """One apt or dpkg command, when nobody else is at it. Returns (status, standard output and error together)."""
    wait_for_lock(lock_timeout)
    status, out, err = module.run_command(
        ["timeout", "--kill-after=30", str(DEADLINE_S), *command], environ_update=ENVIRONMENT
    )
    text = out + "\n" + err
    if status == 124:
        raise AptError("{} did not end within {} s".format(" ".join(command[:3]), DEADLINE_S))
    return status, text


def options(lock_timeout):
    """What every call of apt-get gets. A timer may take the lock between our look at it and apt's: apt waits too."""
    settings = (
        f"DPkg::Lock::Timeout={lock_timeout}",
        "Dpkg::Use-Pty=0",
        "Acquire::Retries=0",
        "Acquire::http::Timeout=60",
        "Acquire::https::Timeout=60",
    )
    return ["-q", "-y", *(argument for setting in settings for argument in ("-o", setting))]


def apt_get(module, arguments, lock_timeout):
    """One call of apt-get. Raises AptError with the cause when it fails."""
    status, text = call(module, ["apt-get", *options(lock_timeout), *arguments], lock_timeout)
    if status:
        raise explained(text, "apt-get " + arguments[0])
    return text


def read_lists(module, uris, lock_timeout):
    """`apt-get update`. AptError for what is wrong with the repositories at these URIs; of others only a warning."""
    status, text = call(module, ["apt-get", *options(lock_timeout), "update"], lock_timeout)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # apt ends well although a list could not be fetched or its signature is bad, when it has an older one.
    ours = [line for line in lines if any(uri in line for uri in uris)]
    error = _key(ours) or _fetch(ours) or (explained(text, "apt-get update") if status else None)
    if error is None:
        return
    if error.url and not any(error.url.startswith(uri) for uri in uris):
        module.warn(f"not a repository of the lock: {error}")
        return
    raise error


def retried(module, attempts, pause, work):
    """Call `work` until it succeeds; what may pass is tried `attempts` times, the pauses grow. AptError otherwise."""
    for attempt in range(1, attempts + 1):
        try:
            return work()
        except AptError as error:
            if not error.passing:
                raise
            if attempt == attempts:
                raise AptError(f"{error} (tried {attempts} times)", url=error.url) from error
            module.warn(f"{error}; tried again in {pause * attempt} s")
            time.sleep(pause * attempt)
    raise AssertionError("attempts must be at least 1")


def explained(text, command):
    """apt's and dpkg's output → AptError with the cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for explain in (_locked, _full, _key, _fetch, _version, _dpkg, _dependencies):
        error = explain(lines)
        if error is not None:
            return error
    errors = [line[2:].strip() for line in lines if line.startswith("E:")]
    return AptError("{} failed: {}".format(command, "; ".join(errors[:3]) or (lines or ["it said nothing"])[-1]))


def _first(lines, pattern):
    return next((match for line in lines for match in [re.search(pattern, line)] if match), None)


def _locked(lines):
    match = _first(lines, r"Could not get lock (\S+?)\.? .*?held by process (\d+)|lock was locked by another process")
    if not match:
        return None
    if not match[1]:
        return AptError("apt is locked by another process", passing=True)
    return AptError(f"apt is locked: {command_of(match[2])} (pid {match[2]}) holds {match[1]}")


def _full(lines):
    match = _first(lines, r"No space left on device|enough free space in (\S+?)\.?$|Write error.*28")
    if not match:
        return None
    path = match[1] if match.lastindex else None
    full_path = path or next(
        (p for p in ("/var/cache/apt/archives", "/var/lib/apt", "/var", "/") if free_mib(p) < 64), "/"
    )
    return AptError(f"the disk is full: {free_mib(full_path)} MiB are free at {full_path}. Make room, then run again")


def free_mib(path):
    """MiB that are free at a path."""
    file_system = os.statvfs(path)
    return file_system.f_bavail * file_system.f_frsize // 2**20


def _key(lines):
    match = _first(lines, r"(\S+://\S+) .*?\b(NO_PUBKEY|EXPKEYSIG|REVKEYSIG|BADSIG)\b ?([0-9A-F]*)")
    if match is None:
        unsigned = _first(lines, r"repository '([^']+)' is (?:not|no longer) signed")
        if unsigned is None:
            return None
        message = f"the repository {unsigned[1]} is not signed; nothing is installed from it"
        return AptError(message, url=unsigned[1].split(" ")[0])
    reason = {
        "NO_PUBKEY": "is signed with a key that is not the pinned one",
        "EXPKEYSIG": "is signed with a key that has expired",
        "REVKEYSIG": "is signed with a key that was revoked",
        "BADSIG": "has a signature that does not fit its content",
    }[match[2]]
    message = "the repository {} {}: {}".format(match[1], reason, match[3] or "key not named")
    return AptError(message, url=match[1])


def _fetch(lines):
    matches = [f for line in lines for f in [re.match(r"[EW]: Failed to fetch (\S+)\s*(.*)", line)] if f]
    if not matches:
        return None
    url, reason = matches[0][1], matches[0][2]
    reason = reason or next((line for line in lines if re.search(PASSING[0], line)), "no reason")
    more_text = f" (and {len(matches) - 1} more)" if len(matches) > 1 else ""
    passing = any(re.search(pattern, line) for pattern in PASSING for line in lines)
    return AptError(f"{url} can't be fetched{more_text}: {reason}", passing=passing, url=url)


def _version(lines):
    match = _first(lines, r"Version '([^']+)' for '([^']+)' was not found")
    if match:
        return AptError(f"{match[2]} {match[1]} is in none of the repositories", absent=True)
    match = _first(lines, r"Unable to locate package (\S+)")
    return AptError(f"{match[1]} is in none of the repositories", absent=True) if match else None


def _dpkg(lines):
    names = [f[1] for line in lines for f in [re.match(r"dpkg: error processing (?:package|archive) (\S+)", line)] if f]
    if not names:
        return None
    at = next(i for i, line in enumerate(lines) if "dpkg: error processing" in line)
    near_lines = lines[max(0, at - 3) : at + 3]
    context_lines = [line for line in near_lines if not line.startswith(("Setting up", "Selecting", "E:"))]
    return AptError("dpkg could not finish {}: {}".format(", ".join(dict.fromkeys(names)), " / ".join(context_lines)))


def _dependencies(lines):
    start = next((i for i, line in enumerate(lines) if "have unmet dependencies" in line), None)
    if start is None:
        return None
    relations = [line for line in lines[start + 1 :] if not line.startswith(("E:", "N:"))]
    return AptError("the locked versions do not go together: {}".format("; ".join(relations[:5])))
