"""A local apt repository made of vendors' archives: fetched, compared with the lock's SHA-256, its packages with theirs.

What apt then reads has no signature of its own: every file in it was compared with the lock before it came there, and
only root writes there. Written for the Python of the nodes (3.10 and later), with nothing but the standard library.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile

from ansible.module_utils.gpuprov_apt import AptError, retried
from ansible.module_utils.urls import fetch_url

ROOT = "/var/lib/gpuprov/repositories"
MARGIN_MIB = 64
"""Room that is left on the disk."""


def address(repository):
    """Where apt reads the repository that `bring` makes."""
    return "file:{0}/{name}/".format(ROOT, **repository)


def bring(module, repository):
    """Make the repository's folder hold exactly its packages of the lock. Returns whether it had to be changed."""
    packages = {package["sha256"]: package for package in repository["packages"]}
    if not packages or not all(packages):
        raise AptError("repository {name}: the lock has no hashes of its packages; lock again".format(**repository))
    folder = os.path.join(ROOT, repository["name"])
    if there(folder) == set(packages):
        return False
    if module.check_mode:
        return True
    os.makedirs(ROOT, mode=0o755, exist_ok=True)
    room(repository)
    fresh = tempfile.mkdtemp(prefix=".{name}-".format(**repository), dir=ROOT)
    try:
        files = {}
        for archive in repository["archives"]:
            file = os.path.join(fresh, "archive")
            attempts, pause = module.params["attempts"], module.params["pause"]
            retried(module, attempts, pause, lambda a=archive, f=file: fetch(module, repository, a, f))
            files.update(unpack(repository, archive, file, fresh, packages))
            if os.path.exists(file):
                os.unlink(file)
        missing = sorted("{name} {version}".format(**p) for digest, p in packages.items() if digest not in files)
        if missing:
            raise AptError("repository {0}: its archives lack {1}; lock again".format(
                repository["name"], ", ".join(missing[:5])))  # fmt: skip
        write_index(fresh, files)
        os.chmod(fresh, 0o755)
        old = fresh + ".old"
        if os.path.exists(folder):
            os.rename(folder, old)
        os.rename(fresh, folder)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return True


def there(folder):
    """SHA-256 of every package in a repository that was made whole; empty where it was not, or was changed since."""
    try:
        with open(os.path.join(folder, "Packages"), encoding="utf-8") as stream:
            text = stream.read()
        hash_by_file = dict(
            zip(re.findall(r"^Filename: \./(\S+)$", text, re.M), re.findall(r"^SHA256: (\S+)$", text, re.M))
        )
        files = {name for name in os.listdir(folder) if name.endswith(".deb")}
        if files != set(hash_by_file) or any(
            sha256(os.path.join(folder, name)) != hash_by_file[name] for name in files
        ):
            return set()
        return set(hash_by_file.values())
    except OSError:
        return set()


def room(repository):
    """AptError where the disk has no room for an archive and what comes out of it."""
    required = 2 * max(archive["size"] for archive in repository["archives"]) // 2**20 + MARGIN_MIB
    there_is = os.statvfs(ROOT)
    free = there_is.f_bavail * there_is.f_frsize // 2**20
    if free < required:
        raise AptError(
            "the disk is too full for the archive of {name}: {0} MiB are free at {1}, {2} MiB are wanted. Make room, "
            "then run again".format(free, ROOT, required, **repository)
        )


def fetch(module, repository, archive, file):
    """Bring an archive to `file`; AptError where it can't be had or is not the locked one."""
    response, info = fetch_url(module, archive["url"], timeout=module.params["timeout"])
    if info["status"] != 200:
        reason = "status {status}: {msg}".format(**info) if info["status"] > 0 else info.get("msg")
        passing = info["status"] in (-1, 429) or info["status"] >= 500
        raise AptError(
            "repository {name}: {0} can't be fetched: {1}".format(archive["url"], reason, **repository), passing
        )
    digest, size = hashlib.sha256(), 0
    try:
        with open(file, "wb") as stream:
            for chunk in iter(lambda: response.read(1 << 20), b""):
                digest.update(chunk)
                stream.write(chunk)
                size += len(chunk)
                if size > archive["size"]:
                    break
    except OSError as error:
        raise AptError(
            "repository {name}: {0} broke off: {1}".format(archive["url"], error, **repository), True
        ) from None
    if size < archive["size"]:
        raise AptError("repository {name}: {0} broke off at {1} of {2} bytes".format(
            archive["url"], size, archive["size"], **repository), True)  # fmt: skip
    if digest.hexdigest() != archive["sha256"]:
        raise AptError(
            "repository {name}: {url} is not the locked file. Locked: SHA-256 {sha256}. Found: {0}. The vendor has put "
            "another file there, or somebody is in between: look for an announcement, then lock again".format(
                digest.hexdigest(), name=repository["name"], url=archive["url"], sha256=archive["sha256"]
            )
        )


def unpack(repository, archive, file, folder, packages):
    """Put the packages of an archive that the lock has into `folder`. Returns SHA-256 → file."""
    if not archive["folder"]:
        return (
            {archive["sha256"]: named(file, folder, packages[archive["sha256"]])}
            if archive["sha256"] in packages
            else {}
        )
    files, running = {}, None
    try:
        if archive["url"].endswith(".deb"):
            running = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", file], stdout=subprocess.PIPE)
            tar = tarfile.open(fileobj=running.stdout, mode="r|")
        else:
            tar = tarfile.open(file, "r|*")
        with tar:
            for member in tar:
                path = member.name[2:] if member.name.startswith("./") else member.name
                if member.isreg() and path.endswith(".deb") and path.startswith(archive["folder"]):
                    member_file = os.path.join(folder, "member")
                    with open(member_file, "wb") as stream:
                        shutil.copyfileobj(tar.extractfile(member), stream)
                    digest = sha256(member_file)
                    if digest in packages and digest not in files:
                        files[digest] = named(member_file, folder, packages[digest])
                    else:
                        os.unlink(member_file)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise AptError(
            "repository {name}: {0} can't be unpacked: {1}".format(archive["url"], error, **repository)
        ) from None
    finally:
        if running is not None:
            running.kill()
            running.wait()
    return files


def named(file, folder, package):
    """Move a package to its own name (no name that is in the archive). Returns where it is."""
    path = os.path.join(folder, "{}_{}.deb".format(package["name"], package["version"].replace(":", "_")))
    os.rename(file, path)
    os.chmod(path, 0o644)
    return path


def write_index(folder, files):
    """Packages: what apt reads."""
    paragraphs = []
    for digest, path in sorted(files.items(), key=lambda item: item[1]):
        try:
            control = subprocess.run(["dpkg-deb", "--field", path], capture_output=True, timeout=60, check=True).stdout
        except (OSError, subprocess.SubprocessError) as error:
            raise AptError(f"{os.path.basename(path)} is no package: {error}") from None
        lines = (f"Filename: ./{os.path.basename(path)}", f"Size: {os.path.getsize(path)}", f"SHA256: {digest}")
        paragraphs.append(control.decode("utf-8", "replace").strip() + "\n" + "\n".join(lines) + "\n")
    with open(os.path.join(folder, "Packages"), "w", encoding="utf-8") as stream:
        stream.write("\n".join(paragraphs))
    os.chmod(os.path.join(folder, "Packages"), 0o644)


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for chunk in iter(lambda: stream.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()
