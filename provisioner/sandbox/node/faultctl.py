"""The node's half of fault injection: show and replace hardware.json, swap a container image. Called by gpuprov
only."""

from __future__ import annotations

import json
import subprocess
import sys

from . import devices, host, loading, state, sysfs

HEALTHY = "etc/gpuprov-sandbox/healthy.json"
SWAPPED = "var/lib/gpuprov-sandbox/swapped-image.json"
MIRROR = "mirror.gpuprov.internal"


def fault(arguments: list[str], _version: str) -> int:
    """`show`: what is there; `write`: replace hardware.json by what comes on standard input, whole or not at all."""
    if arguments == ["show"]:
        driver = (state.installed("nvml") or {}).get("version")
        json.dump(
            {"healthy": state.read(HEALTHY, {}), "current": state.read(state.HARDWARE, {}), "driver": driver},
            sys.stdout,
        )
        return 0
    if arguments == ["write"]:
        state.write(state.HARDWARE, json.load(sys.stdin))
        state.path(loading.LOADED).unlink(missing_ok=True)
        devices.show()
        host.show()
        sysfs.network_cards()
        return 0
    return 2


def image(arguments: list[str], _version: str) -> int:
    """`swap`: the locked image goes, other content gets its tags; `restore`: pulled by digest again, tags as before."""
    if arguments == ["swap"]:
        return _swap()
    if arguments == ["restore"]:
        return _restore()
    return 2


def _docker(*arguments: str, stdin: bytes | None = None) -> str:
    done = subprocess.run(["docker", *arguments], input=stdin, capture_output=True, timeout=60, check=False)
    if done.returncode != 0:
        raise SystemExit(f"docker {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode().strip()


def _swap() -> int:
    if state.read(SWAPPED, None) is not None:
        return 0
    for identity in sorted(set(_docker("image", "ls", "--quiet", "--no-trunc").split())):
        inspected = json.loads(_docker("image", "inspect", identity))[0]
        pulls = [name for name in inspected["RepoDigests"] if name.startswith(MIRROR)]
        if pulls:
            break
    else:
        print("no image of the mirror is on this node: `gpuprov up` pulls them", file=sys.stderr)
        return 1
    tags = inspected["RepoTags"] or []
    reference = (inspected["Config"]["Labels"] or {}).get("org.gpuprov.reference", "")
    state.write(SWAPPED, {"pulls": pulls, "tags": tags, "reference": reference})
    names = tags or [reference]
    container = _docker("create", identity, "true")
    content = subprocess.run(["docker", "export", container], capture_output=True, timeout=60, check=True).stdout
    _docker("rm", container)
    _docker("image", "rm", "--force", identity)
    _docker("import", "--change", "LABEL org.gpuprov.simulated=true", "-", names[0], stdin=content)
    for name in names[1:]:
        _docker("tag", names[0], name)
    return 0


def _restore() -> int:
    swapped = state.read(SWAPPED, None)
    if swapped is None:
        return 0
    for name in swapped["tags"] or [swapped["reference"]]:
        subprocess.run(["docker", "image", "rm", "--force", name], capture_output=True, timeout=60, check=False)
    for pull in swapped["pulls"]:
        _docker("pull", "--quiet", pull)
        for tag in swapped["tags"]:
            _docker("tag", pull, tag)
    state.path(SWAPPED).unlink()
    return 0
