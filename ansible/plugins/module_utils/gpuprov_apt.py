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
        asked = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _whence, _start, _length, pid = struct.unpack("hhqqi", fcntl.fcntl(handle, fcntl.F_GETLK, asked))
    finally:
        os.close(handle)
    if kind == fcntl.F_UNLCK:
        return None
    return f"{command_of(pid)} (pid {pid})"


def command_of(pid):
    """The command line of a process, at most 120 characters."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            words = stream.read().replace(b"\0", b" ").decode(errors="replace").split()
    except OSError:
        words = []
    return " ".join(words)[:120] or "a process that has ended"


def wait_for_lock(timeout):
    """Return when nobody holds apt's locks; AptError naming the holder when that takes more than `timeout` seconds."""
    until = time.monotonic() + timeout
    while True:
        held = next(((path, who) for path in LOCKS for who in [holder(path)] if who), None)
        if held is None:
            return
        if time.monotonic() >= until:
            raise AptError(
                f"apt is locked: {held[1]} has held {held[0]} for longer than the {timeout} s that were waited. "
                "Wait for it or end it, then run again"
            )
        time.sleep(0.5)


def call(module, words, lock_timeout):
    """One apt or dpkg command, when nobody else is at it. Returns (status, standard output and error together)."""
    wait_for_lock(lock_timeout)
    status, out, err = module.run_command(
        ["timeout", "--kill-after=30", str(DEADLINE_S), *words], environ_update=ENVIRONMENT
    )
    text = out + "\n" + err
    if status == 124:
        raise AptError("{} did not end within {} s".format(" ".join(words[:3]), DEADLINE_S))
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
    return ["-q", "-y", *(word for setting in settings for word in ("-o", setting))]


def apt_get(module, words, lock_timeout):
    """One call of apt-get. Raises AptError with the cause when it fails."""
    status, text = call(module, ["apt-get", *options(lock_timeout), *words], lock_timeout)
    if status:
        raise explained(text, "apt-get " + words[0])
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


def explained(text, what):
    """apt's and dpkg's output → AptError with the cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for said in (_locked, _full, _key, _fetch, _version, _dpkg, _dependencies):
        error = said(lines)
        if error is not None:
            return error
    errors = [line[2:].strip() for line in lines if line.startswith("E:")]
    return AptError("{} failed: {}".format(what, "; ".join(errors[:3]) or (lines or ["it said nothing"])[-1]))


def _first(lines, pattern):
    return next((found for line in lines for found in [re.search(pattern, line)] if found), None)


def _locked(lines):
    found = _first(lines, r"Could not get lock (\S+?)\.? .*?held by process (\d+)|lock was locked by another process")
    if not found:
        return None
    if not found[1]:
        return AptError("apt is locked by another process", passing=True)
    return AptError(f"apt is locked: {command_of(found[2])} (pid {found[2]}) holds {found[1]}")


def _full(lines):
    found = _first(lines, r"No space left on device|enough free space in (\S+?)\.?$|Write error.*28")
    if not found:
        return None
    where = found[1] if found.lastindex else None
    place = where or next(
        (p for p in ("/var/cache/apt/archives", "/var/lib/apt", "/var", "/") if free_mib(p) < 64), "/"
    )
    return AptError(f"the disk is full: {free_mib(place)} MiB are free at {place}. Make room, then run again")


def free_mib(path):
    """MiB that are free at a path."""
    there = os.statvfs(path)
    return there.f_bavail * there.f_frsize // 2**20


def _key(lines):
    found = _first(lines, r"(\S+://\S+) .*?\b(NO_PUBKEY|EXPKEYSIG|REVKEYSIG|BADSIG)\b ?([0-9A-F]*)")
    if found is None:
        unsigned = _first(lines, r"repository '([^']+)' is (?:not|no longer) signed")
        if unsigned is None:
            return None
        message = f"the repository {unsigned[1]} is not signed; nothing is installed from it"
        return AptError(message, url=unsigned[1].split(" ")[0])
    why = {
        "NO_PUBKEY": "is signed with a key that is not the pinned one",
        "EXPKEYSIG": "is signed with a key that has expired",
        "REVKEYSIG": "is signed with a key that was revoked",
        "BADSIG": "has a signature that does not fit its content",
    }[found[2]]
    message = "the repository {} {}: {}".format(found[1], why, found[3] or "key not named")
    return AptError(message, url=found[1])


def _fetch(lines):
    found = [f for line in lines for f in [re.match(r"[EW]: Failed to fetch (\S+)\s*(.*)", line)] if f]
    if not found:
        return None
    url, why = found[0][1], found[0][2] or next((line for line in lines if re.search(PASSING[0], line)), "no reason")
    rest = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    passing = any(re.search(pattern, line) for pattern in PASSING for line in lines)
    return AptError(f"{url} can't be fetched{rest}: {why}", passing=passing, url=url)


def _version(lines):
    found = _first(lines, r"Version '([^']+)' for '([^']+)' was not found")
    if found:
        return AptError(f"{found[2]} {found[1]} is in none of the repositories", absent=True)
    found = _first(lines, r"Unable to locate package (\S+)")
    return AptError(f"{found[1]} is in none of the repositories", absent=True) if found else None


def _dpkg(lines):
    names = [f[1] for line in lines for f in [re.match(r"dpkg: error processing (?:package|archive) (\S+)", line)] if f]
    if not names:
        return None
    at = next(i for i, line in enumerate(lines) if "dpkg: error processing" in line)
    said = [line for line in lines[max(0, at - 3) : at + 3] if not line.startswith(("Setting up", "Selecting", "E:"))]
    return AptError("dpkg could not finish {}: {}".format(", ".join(dict.fromkeys(names)), " / ".join(said)))


def _dependencies(lines):
    start = next((i for i, line in enumerate(lines) if "have unmet dependencies" in line), None)
    if start is None:
        return None
    wanted = [line for line in lines[start + 1 :] if not line.startswith(("E:", "N:"))]
    return AptError("the locked versions do not go together: {}".format("; ".join(wanted[:5])))
