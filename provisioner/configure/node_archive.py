"""What a node needs to run the roles on itself, as one archive: ansible-core and ansible-runner without compiled parts,
the roles and plugins, the checks, and two programs of gpuprov. Its name is its content: the same input gives the same
bytes.

The roles' YAML becomes JSON, which is YAML, too: Python reads it ten times faster, and a node has no libyaml for
Python. Modules come packed as Ansible packs them for each run.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata, resources
from pathlib import Path

import yaml

from provisioner.common import paths, yaml_text
from provisioner.common.errors import GpuprovError
from provisioner.verify import archive

PACKAGES = {
    "ansible-core": "ansible", "ansible-runner": "ansible_runner", "jinja2": "jinja2", "markupsafe": "markupsafe",
    "packaging": "packaging", "pexpect": "pexpect", "ptyprocess": "ptyprocess", "pyyaml": "yaml",
}  # fmt: skip
"""Distribution → its package. All have a pure Python part that works alone."""
METADATA = ("jinja2",)
"""Distributions whose version ansible-core reads from their metadata."""
LEFT_OUT = (
    "ansible/galaxy/", "ansible/cli/doc", "ansible/cli/galaxy", "ansible/cli/vault", "ansible/cli/console",
    "ansible/cli/pull", "ansible/module_utils/csharp/", "ansible/module_utils/powershell/",
)  # fmt: skip
"""Parts of the packages that no role uses."""
MODULES = (
    "assert", "command", "copy", "debug", "fail", "file", "import_role", "import_tasks", "include_tasks", "meta",
    "reboot", "script", "set_fact", "setup", "shell", "slurp", "stat", "systemd", "systemd_service", "tempfile",
)  # fmt: skip
"""Modules of ansible-core that roles use, by themselves or through an action; a test compares them with the roles."""
SETTINGS = {
    "lib/ansible/config/base.yml": yaml.CSafeLoader,
    "lib/ansible/config/ansible_builtin_runtime.yml": yaml.CBaseLoader,
}
"""Files that Ansible reads at each start → the loader that it takes. They become JSON (configure/node_playbook.py)."""
HEALTH = "health.pyz"
"""The checks, for role health (verify/archive.py)."""
MANIFEST = "MANIFEST"
"""Member of the archive: a line "sha256  path" for each other member."""
PYTHON_MIN = (3, 11)
"""Python that ansible-core 2.19 needs where it runs (its `requires-python`; a test compares)."""
PYTHON_MODULES = ("_ctypes", "lzma", "zlib", "pty", "termios", "fcntl", "multiprocessing.synchronize")
"""Compiled parts of Python's standard library that a distribution may package apart."""
PRESET = 6
"""Of xz(1)."""
KEPT_BUILDS = 4
"""Archives that stay in the cache."""
NOT_PACKED = {".pyc", ".pyd", ".so"}


@dataclass(frozen=True, slots=True)
class NodeArchive:
    """`file`: a tar, compressed with xz. `digest`: sha256 of its bytes; `manifest`: sha256 of its MANIFEST, which names
    the folder on the node."""

    file: Path
    digest: str
    manifest: str

    def content(self) -> bytes:
        """The bytes. Raises GpuprovError where the file is not what was built."""
        content = self.file.read_bytes()
        if hashlib.sha256(content).hexdigest() != self.digest:
            raise GpuprovError(
                f"the archive for nodes has another sha256 than {self.digest[:16]}…",
                where=str(self.file),
                hint="remove the file and run the command again, which builds it again",
            )
        return content


def build() -> NodeArchive:
    """The archive of this installation, from the cache where it is there."""
    name = fingerprint()[:16]
    folder = paths.cache()
    file, description = folder / f"node-{name}.tar.xz", folder / f"node-{name}.json"
    try:
        known = json.loads(description.read_text(encoding="utf-8"))
        built = NodeArchive(file, known["digest"], known["manifest"])
        built.content()
    except (OSError, ValueError, KeyError, TypeError, GpuprovError):
        content, manifest = pack(members())
        built = NodeArchive(file, hashlib.sha256(content).hexdigest(), manifest)
        paths.write_whole(file, content)
        paths.write_whole(description, json.dumps({"digest": built.digest, "manifest": manifest}) + "\n")
        _remove_old(folder)
    os.utime(file)
    return built


def fingerprint() -> str:
    """Of all that the archive is made of, sha256. Distributions count by their versions."""
    digest = hashlib.sha256()
    for name in sorted(PACKAGES):
        digest.update(f"{name} {metadata.version(name)}\n".encode())
    for path, content in [*_own_files(), *_role_files()]:
        digest.update(f"{path} {hashlib.sha256(content).hexdigest()}\n".encode())
    digest.update(archive.digest().encode())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()


def members() -> dict[str, bytes]:
    """Path → content, of all files."""
    files = dict(_own_files())
    for distribution, package in PACKAGES.items():
        files |= {f"lib/{path}": content for path, content in _package_files(distribution, package)}
    for path, loader in SETTINGS.items():
        files[path] = json.dumps(yaml.load(files[path], loader), indent=1).encode() + b"\n"  # type: ignore[arg-type]  # noqa: S506
    files |= {f"ansible/{path}": _as_json(path, content) for path, content in _role_files()}
    files |= {f"modules/{name}": content for name, content in _packed_modules()}
    return files | {HEALTH: archive.archive()}


def pack(files: dict[str, bytes]) -> tuple[bytes, str]:
    """The archive of these files, and the sha256 of its MANIFEST."""
    lines = (f"{hashlib.sha256(content).hexdigest()}  {path}\n" for path, content in sorted(files.items()))
    manifest = "".join(lines).encode()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as target:
        for path, content in [(MANIFEST, manifest), *sorted(files.items())]:
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(content), 0o755 if path.startswith("bin/") else 0o644
            target.addfile(member, io.BytesIO(content))
    return lzma.compress(stream.getvalue(), preset=PRESET), hashlib.sha256(manifest).hexdigest()


def _own_files() -> Iterator[tuple[str, bytes]]:
    """gpuprov's own programs that run on the node."""
    folder = resources.files("provisioner.configure")
    yield "bin/ansible-playbook", (folder / "node_playbook.py").read_bytes()
    yield "node_worker.py", (folder / "node_worker.py").read_bytes()


def _role_files() -> Iterator[tuple[str, bytes]]:
    """Playbook, roles and plugins, as they lie in this installation."""
    root = paths.data("ansible")
    for file in sorted(root.rglob("*")):
        if file.is_file() and file.suffix not in NOT_PACKED and file.name not in ("README.md", "argument_specs.yml"):
            yield file.relative_to(root).as_posix(), file.read_bytes()


def _package_files(distribution: str, package: str) -> Iterator[tuple[str, bytes]]:
    """Files of an installed package that a node needs, and its metadata where somebody reads that."""
    installed = metadata.distribution(distribution)
    root = Path(str(installed.locate_file("")))
    for file in sorted((root / package).rglob("*")):
        path = file.relative_to(root).as_posix()
        if file.is_file() and file.suffix not in NOT_PACKED and "__pycache__" not in path and _is_needed(path):
            yield path, file.read_bytes()
    if distribution in METADATA:
        text = installed.read_text("METADATA") or ""
        yield f"{package}-{installed.version}.dist-info/METADATA", text.partition("\n\n")[0].encode() + b"\n"


def _is_needed(path: str) -> bool:
    if path.startswith("ansible/modules/"):
        return Path(path).stem in (*MODULES, "__init__")
    return not path.startswith(LEFT_OUT)


def _as_json(path: str, content: bytes) -> bytes:
    """A YAML file of a role as JSON; what has a tag of Ansible's own stays as it is."""
    if not path.startswith(("roles/", "playbooks/")) or not path.endswith((".yml", ".yaml")):
        return content
    try:
        return json.dumps(yaml_text.load(content), indent=1).encode() + b"\n"
    except (yaml.YAMLError, TypeError):
        return content


def _packed_modules() -> Iterator[tuple[str, bytes]]:
    """Name in Ansible's own cache → a module with all that it imports. Made by a process of its own: Ansible reads its
    settings when it is imported."""
    root = paths.data("ansible")
    done = subprocess.run(
        [sys.executable, "-m", "provisioner.configure.packed_modules"],
        env={**os.environ, "ANSIBLE_CONFIG": str(root / "ansible.cfg"), "LC_ALL": "C.UTF-8"},
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip()
        raise GpuprovError(f"Ansible's modules cannot be packed: {text[-800:]}", where="configure")
    yield from sorted((name, bytes.fromhex(content)) for name, content in json.loads(done.stdout).items())


def _remove_old(folder: Path) -> None:
    """Remove all but the archives that were used last."""
    by_age = sorted(folder.glob("node-*.tar.xz"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in by_age[KEPT_BUILDS:]:
        file.unlink(missing_ok=True)
        file.with_name(file.name.removesuffix(".tar.xz") + ".json").unlink(missing_ok=True)


@cache
def of_this_installation() -> NodeArchive:
    """As `build`, once in a process."""
    return build()
