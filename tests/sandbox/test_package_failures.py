"""What stands in the way of packages on a real node: each ends in a clear error or in a completed run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from provisioner.sandbox.deb import Deb
from tests.support import inside
from tests.support.node_mirror import URL, NodeMirror, with_script
from tests.support.playbook import play
from tests.support.sandbox_cluster import SandboxCluster

pytestmark = [pytest.mark.sandbox, pytest.mark.shares("lone"), pytest.mark.begins(3)]

NAME, VERSION = "gpuprov-test", "1.2-1"
TRIES = {"attempts": 3, "pause": 1, "lock_timeout": 20}


def one_package(stack: dict[str, Any], *versions: str) -> dict[str, Any]:
    """A stack of one harmless package, from the first repository."""
    repository = stack["repositories"][0]
    packages = [{"name": NAME, "version": v, "repository": repository["name"], "part": "nccl"} for v in versions]
    return {**stack, "packages": packages, "repositories": [repository]}


@pytest.fixture(scope="module")
def mirror(lone: SandboxCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeMirror]:
    """The node's own mirror, as the only source that the node has; everything as it was in the end."""
    node_mirror = NodeMirror(lone, "train-0", tmp_path_factory.mktemp("mirror"))
    node_mirror.shell("mkdir -p /root/kept && cp -a /etc/apt/sources.list.d /etc/apt/keyrings /root/kept")
    try:
        yield node_mirror
    finally:
        node_mirror.shell(
            "systemctl stop test-mirror; umount /var/cache/apt/archives; dpkg --purge gpuprov-test", check=False
        )
        node_mirror.shell(
            "rm -rf /etc/apt/sources.list.d /etc/apt/keyrings && mv /root/kept/* /etc/apt/ && apt-get update -q"
        )


@pytest.fixture
def node(mirror: NodeMirror) -> NodeMirror:
    """The node without our sources and package, beside a mirror that has the package and no faults."""
    mirror.shell(f"apt-mark unhold {NAME}; dpkg --purge {NAME}; apt-get clean", check=False)
    mirror.shell("rm -rf /etc/apt/sources.list.d/* /etc/apt/keyrings/* /var/lib/apt/lists/*")
    mirror.serve(one_package(mirror.locked(), VERSION))
    return mirror


def add_sources(node: NodeMirror, **changes: Any) -> Any:
    """apt_repositories for the node's mirror; `changes` are of the repository."""
    repositories = node.here(one_package(node.locked()))["repositories"]
    return node.call("apt_repositories", repositories=[{**repositories[0], **changes}], **TRIES)


def install(node: NodeMirror, version: str = VERSION, **options: Any) -> Any:
    return node.call("locked_packages", packages=[{"name": NAME, "version": version}], **TRIES | options)


def installed(node: NodeMirror) -> str:
    return node.shell(f"dpkg-query -W -f '${{db:Status-Abbrev}} ${{Version}}' {NAME} 2>/dev/null", check=False)


def test_installed_held_and_left_alone_the_second_time(node: NodeMirror) -> None:
    assert add_sources(node).changed
    first = install(node)
    assert first.changed
    assert (first.result["installed"], first.result["held"]) == ([f"{NAME}={VERSION}"], [NAME])
    assert installed(node) == f"hi  {VERSION}"
    assert not add_sources(node).changed
    # Nothing is called when all is as locked: neither a mirror that is gone nor a held lock matters then.
    node.shell("systemctl stop test-mirror")
    with lock_held(node, seconds=30):
        assert not install(node, lock_timeout=1).changed


def test_a_hold_that_was_lost_comes_back(node: NodeMirror) -> None:
    add_sources(node)
    install(node)
    node.shell(f"apt-mark unhold {NAME}")
    second = install(node)
    assert (second.changed, second.result["installed"], second.result["held"]) == (True, [], [NAME])
    assert installed(node).startswith("hi")


class lock_held:
    """dpkg's lock in the hands of another process on the node, as a timer or a person would hold it."""

    def __init__(self, node: NodeMirror, seconds: float) -> None:
        script = (
            "import fcntl, time; f = open('/var/lib/dpkg/lock-frontend', 'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
            f"open('/run/test-lock', 'w'); time.sleep({seconds})"
        )
        node.shell("rm -f /run/test-lock")
        self.node = node
        self.process = subprocess.Popen(inside.command(node.container, "python3", "-c", script))

    def __enter__(self) -> None:
        self.node.shell("for i in $(seq 100); do [ -e /run/test-lock ] && exit 0; sleep 0.1; done; exit 1")

    def __exit__(self, *_: object) -> None:
        self.node.shell("pkill -f /run/test-lock", check=False)
        self.process.wait(timeout=30)


def test_a_lock_that_is_released_in_time_is_waited_for(node: NodeMirror) -> None:
    add_sources(node)
    with lock_held(node, seconds=4):
        assert install(node, lock_timeout=60).changed
    assert installed(node) == f"hi  {VERSION}"


def test_a_lock_that_stays_is_an_error_that_names_its_holder(node: NodeMirror) -> None:
    add_sources(node)
    with lock_held(node, seconds=60):
        message = install(node, lock_timeout=2).message
        assert "apt is locked: python3 -c import fcntl" in message
        assert "(pid " in message
        assert "/var/lib/dpkg/lock-frontend for longer than the 2 s" in message
        assert "apt is locked" in node.call("apt_repositories", repositories=[], valid_time=0, lock_timeout=1).message
    assert installed(node) == ""


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("InRelease", 503, "503"),
        (r"Packages(\.gz)?$", 503, "503"),
        (r"Packages(\.gz)?$", 200, "can't be fetched"),
        (r"\.asc$", 503, "status 503"),
    ],
    ids=["release", "index", "half-an-index", "key"],
)
def test_a_repository_that_does_not_answer(node: NodeMirror, path: str, status: int, text: str) -> None:
    """For a while: waited out. For ever: an error with the repository's address."""
    node.faults((path, status, -1))
    message = add_sources(node).message
    assert text in message
    assert URL in message
    assert "(tried 3 times)" in message
    node.faults((path, status, 1))
    assert add_sources(node).ok
    assert install(node).changed


@pytest.mark.parametrize(("status", "text"), [(503, "503"), (200, "unexpected size")], ids=["503", "half-a-package"])
def test_a_package_that_does_not_come_whole(node: NodeMirror, status: int, text: str) -> None:
    add_sources(node)
    node.faults((r"\.deb$", status, -1))
    message = install(node).message
    assert f"{URL}/apt/" in message
    assert f"{NAME}_{VERSION}" in message
    assert text in message
    assert "(tried 3 times)" in message
    assert installed(node) == ""
    node.faults((r"\.deb$", status, 1))
    assert install(node).changed
    assert installed(node) == f"hi  {VERSION}"


def test_a_key_that_is_not_there(node: NodeMirror) -> None:
    message = add_sources(node, key_url=f"{URL}/keys/none.asc").message
    assert f"the key {URL}/keys/none.asc can't be fetched: status 404" in message
    assert "tried" not in message  # it would not come by waiting


def test_a_key_with_another_fingerprint(node: NodeMirror) -> None:
    message = add_sources(node, fingerprint="0" * 40).message
    assert "is not the pinned one" in message
    assert "0" * 40 in message
    assert node.keys.fingerprint in message
    assert (
        node.shell("ls /etc/apt/keyrings /etc/apt/sources.list.d") == "/etc/apt/keyrings:\n\n/etc/apt/sources.list.d:"
    )


def signing_key(folder: Path, *options: str) -> tuple[str, str, str]:
    """A fresh OpenPGP key: public and secret text, fingerprint."""
    home = folder / "gnupg"
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--passphrase", "", "--pinentry-mode", "loopback"]

    def run(*arguments: str) -> str:
        return subprocess.run([*gpg, *arguments], capture_output=True, text=True, check=True, timeout=60).stdout

    run(*options, "--quick-generate-key", "test", "rsa2048", "sign", "1d" if options else "0")
    fingerprint = next(r.split(":")[9] for r in run("--with-colons", "--list-keys").splitlines() if r.startswith("fpr"))
    public, secret = run("--armor", "--export"), run("--armor", "--export-secret-keys")
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False, timeout=30)
    return public, secret, fingerprint


def test_an_expired_key(node: NodeMirror, tmp_path: Path) -> None:
    public, _, fingerprint = signing_key(tmp_path, "--faked-system-time", "20240101T000000")
    node.keys = replace(node.keys, public=public, fingerprint=fingerprint)
    try:
        name = node.locked()["repositories"][0]["name"]
        node.shell(f"cat > /srv/test-mirror/http/keys/{name}.asc <<'KEY'\n{public}KEY\n")
        message = add_sources(node).message
    finally:
        node.keys = NodeMirror(node.sandbox_cluster, node.node, tmp_path).keys
    assert "expired on 2024-01-02" in message
    assert f"{URL}/keys/{name}.asc" in message


def test_a_repository_that_another_key_signed(node: NodeMirror, tmp_path: Path) -> None:
    """The pinned key is there, the repository's signature is somebody else's."""
    public, secret, fingerprint = signing_key(tmp_path)
    other = replace(node.keys, public=public, secret=secret, fingerprint=fingerprint)
    node.serve(one_package(node.locked(), VERSION), signed_by=other)
    name = node.locked()["repositories"][0]["name"]
    node.shell(f"cat > /srv/test-mirror/http/keys/{name}.asc <<'KEY'\n{node.keys.public}KEY\n")
    message = add_sources(node).message
    assert f"the repository {URL}/apt/{name}" in message
    assert "signed with a key that is not the pinned one" in message
    assert fingerprint[-16:] in message


def test_a_version_that_no_repository_has(node: NodeMirror) -> None:
    node.serve(one_package(node.locked(), "1.2-1", "1.3-1"))
    add_sources(node)
    assert install(node, "1.4-1").message == f"no repository of this node has {NAME} 1.4-1; there is 1.3-1, 1.2-1"
    assert install(node, "1.2-1").changed
    assert install(node, "1.3-1").changed
    assert install(node, "1.2-1").changed  # and back, over its own hold
    assert installed(node) == "hi  1.2-1"


def test_a_version_that_came_after_the_lists_were_read(node: NodeMirror) -> None:
    add_sources(node)
    node.serve(one_package(node.locked(), "1.9-1"))
    assert install(node, "1.9-1").changed


def test_a_full_disk_is_found_before_anything_is_touched(node: NodeMirror) -> None:
    add_sources(node)
    node.shell(
        "/usr/bin/mount -t tmpfs -o size=2m tmpfs /var/cache/apt/archives && mkdir /var/cache/apt/archives/partial"
    )
    try:
        message = install(node).message
    finally:
        node.shell("/usr/bin/umount /var/cache/apt/archives")
    assert "the disk is too full for 1 packages" in message
    assert "MiB are free at /var/cache/apt/archives" in message
    assert installed(node) == ""
    assert install(node).changed


def slow(deb: Deb) -> Deb:
    """Its installation takes ten minutes on a node that says so, and is quick once that node was rebooted."""
    return with_script(deb, "postinst", "touch /run/test-installing\n[ ! -e /run/test-slow ] || sleep 600\n")


def test_a_package_whose_script_fails_says_why(node: NodeMirror) -> None:
    broken = "echo 'no room in the inn' >&2\n[ -e /run/test-mended ]\n"
    node.serve(one_package(node.locked(), VERSION), edit=lambda deb: with_script(deb, "postinst", broken))
    add_sources(node)
    message = install(node).message
    assert f"dpkg could not finish {NAME}" in message
    assert "no room in the inn" in message
    node.shell("touch /run/test-mended")
    done = install(node)
    assert done.changed
    assert done.result["repaired"] == [NAME]
    assert installed(node) == f"hi  {VERSION}"


def test_a_node_that_loses_power_while_the_driver_is_installed(node: NodeMirror) -> None:
    """The next run finishes what was begun, and the driver works."""
    stack = node.locked()
    target = next(p["name"] for p in stack["packages"] if "dkms" in p["name"] and p["part"] == "driver")
    node.serve(stack, edit=lambda deb: slow(deb) if deb.name == target else deb)
    node.shell("touch /run/test-slow; rm -f /run/test-installing")
    driver = [p["name"] for p in stack["packages"] if p["part"] in ("driver", "fabric_manager")]
    node.shell(f"apt-mark unhold {' '.join(driver)}; apt-get purge -y -q {' '.join(driver)}; apt-get clean")
    run = node.sandbox_cluster
    limit, variables = node.node, {"gpuprov_stack": node.here(stack)}

    # Without retries, or the first run could go on by itself once the node is back.
    first = Thread(
        target=lambda: play(run, limit=limit, tags="base,nvidia_driver", variables=variables, retries=0), daemon=True
    )
    first.start()
    node.shell("for i in $(seq 600); do [ -e /run/test-installing ] && exit 0; sleep 0.1; done; exit 1")
    subprocess.run(["podman", "kill", node.container], check=True, capture_output=True, timeout=60)
    subprocess.run(["podman", "start", node.container], check=True, capture_output=True, timeout=60)
    first.join(timeout=120)
    assert not first.is_alive()
    state = node.shell(f"dpkg-query -W -f '${{db:Status-Abbrev}}' {target}")
    assert state[1] in "HUF", state  # it was cut in the middle
    node.wait_for_boot()
    node.start()
    assert play(run, limit=limit, tags="base,nvidia_driver", variables=variables).changed()[limit] > 0
    assert node.shell("nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u") == stack["driver"]
    assert play(run, limit=limit, tags="base,nvidia_driver", variables=variables).changed()[limit] == 0
