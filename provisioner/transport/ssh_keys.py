"""The key that the nodes know: the user's own, or one that gpuprov makes for the cluster."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from provisioner.common import directories
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ClusterPaths, private_dir, write_whole
from provisioner.transport import ssh_basics


def identity(paths: ClusterPaths) -> Path:
    """The private key that the nodes know."""
    pointer = paths.ssh / "identity"
    return Path(pointer.read_text(encoding="utf-8").strip()) if pointer.exists() else paths.ssh / "id_ed25519"


def ensure_key(paths: ClusterPaths, key_file: str | None) -> str:
    """The public key for the nodes: of the key that cluster.yaml names, else of one that gpuprov makes for this
    cluster alone. Returns "ssh-ed25519 AAAA… comment". Raises GpuprovError where there is no such key, or where ssh
    can't be told its place."""
    ssh_basics.quoted(private_dir(paths.ssh))
    if key_file is None:
        own_key = paths.ssh / "id_ed25519"
        if not (own_key.exists() and own_key.with_suffix(".pub").exists()):
            _make_key(own_key, f"gpuprov-{paths.name}")
        (paths.ssh / "identity").unlink(missing_ok=True)
        return own_key.with_suffix(".pub").read_text(encoding="utf-8").strip()
    private = Path(key_file).expanduser()
    public = private.with_name(private.name + ".pub")
    for path, kind in ((private, "private"), (public, "public")):
        if not path.is_file():
            raise GpuprovError(
                f"there is no {kind} key {path}",
                where="access.ssh_key",
                hint=f"make one with `ssh-keygen -t ed25519 -f {private}`, or leave access.ssh_key out",
            )
    ssh_basics.quoted(private.absolute())
    write_whole(paths.ssh / "identity", f"{private.absolute()}\n")
    return public.read_text(encoding="utf-8").strip()


def _make_key(path: Path, comment: str) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        fresh = Path(folder) / "key"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(fresh)],
            check=True,
            timeout=30,
            capture_output=True,
        )
        directories.move(fresh.with_suffix(".pub"), path.with_suffix(".pub"), mode=0o644)
        directories.move(fresh, path)
