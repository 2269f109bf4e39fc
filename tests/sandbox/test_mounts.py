"""Role mounts on a real node, with file systems in memory in place of the network's: what it makes and refuses."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

import pytest

from provisioner import catalog
from provisioner.common.paths import ClusterPaths
from provisioner.lifecycle.session import open_cluster
from provisioner.machines.mounts import unit
from provisioner.machines.providers.aws.settings import S3_ACCESS, S3_OPTIONS
from provisioner.plan.models import build_plan
from provisioner.transport import ssh
from provisioner.verify import archive
from provisioner.verify.collect import collect
from provisioner.verify.expectations import expect
from provisioner.verify.parsers import shared
from provisioner.verify.request import ProbeRequest
from tests.support import inside
from tests.support.playbook import Played, play
from tests.support.sandbox_cluster import SandboxCluster

pytestmark = [pytest.mark.sandbox, pytest.mark.shares("lone"), pytest.mark.begins(3)]

PLACE = "/srv/my-data"


def mount(source: str = "gpuprov-one", kind: str = "tmpfs", path: str = PLACE) -> dict[str, str]:
    options = "size=1m,mode=0755,_netdev"
    return {"type": kind, "source": source, "path": path, "options": options, "unit": unit(path), "part": ""}


HEALTH = "systemctl start gpuprov-health.service"
S3 = "/usr/sbin/mount.mount-s3"
STAND_IN = f"""cat >{S3} <<'END' && chmod 755 {S3}
#!/bin/sh
echo "$*" >>/tmp/told
exec mount --no-canonicalize --internal-only -t tmpfs mountpoint-s3 "$2"
END"""
"""In place of mount-s3: what it is told is written down, and the kernel knows what it mounts by that one name."""


def bucket(source: str = "s3://my-data/sets/", access: str = "ro") -> dict[str, str]:
    options = S3_OPTIONS.format(access=S3_ACCESS[access])
    return {
        "type": "mount-s3", "source": source, "path": PLACE, "options": options, "unit": unit(PLACE),
        "shows_type": "tmpfs", "shows_source": "mountpoint-s3", "access": access, "part": "mount_s3",
    }  # fmt: skip


class Site:
    """The node's site with these file systems, as the role is told."""

    def __init__(self, sandbox_cluster: SandboxCluster) -> None:
        self.sandbox_cluster = sandbox_cluster
        self.container = sandbox_cluster.container("train-0")

    def has(self, *mounts: dict[str, str], check: bool = False, tags: str = "mounts", **variables: Any) -> Played:
        role_variables = {"mounts_patience": 0, "mounts_timeout": 3, "mounts_distribution_packages": [],
                          "mounts_packages": [], **variables}  # fmt: skip
        role_variables["gpuprov_mounts"] = {"virginia": list(mounts)}
        role_variables.setdefault("gpuprov_stack", {"kernel": platform.release(), "packages": [{"part": "mount_s3"}]})
        return play(self.sandbox_cluster, tags=tags, variables=role_variables, check=check)

    def shell(self, script: str) -> str:
        done = inside.run(self.container, "sh", "-c", script)
        return (done.stdout + done.stderr).strip()

    def probed(self, path: str) -> shared.Shared:
        """What the probe finds at a path."""
        name = self.sandbox_cluster.name
        target = ssh.argv(ClusterPaths(self.sandbox_cluster.file, name, sandbox=True), "train-0")
        bundle = collect({"train-0": target}, ProbeRequest({"shared.json": 20}, shared=(path,)))["train-0"]
        (shared_state,) = shared.parse(bundle.files["shared.json"].text)
        return shared_state

    def there(self, path: str = PLACE) -> str:
        """Source and mode of what is mounted, empty for nothing."""
        return self.shell(f"findmnt --noheadings --output SOURCE {path} && stat --format=%a {path} || :")


@pytest.fixture
def site(lone: SandboxCluster) -> Iterator[Site]:
    test_site = Site(lone)
    yield test_site
    name = f"'{unit(PLACE)}'"
    test_site.shell(f"systemctl disable --now {name}; umount {PLACE}; cd /etc/systemd/system && rm -f {name}")
    test_site.shell(
        f"rm -rf {PLACE} /usr/sbin/mount.gone {S3} /tmp/told; systemctl daemon-reload; systemctl reset-failed"
    )


def test_what_is_asked_for_is_mounted_once_and_at_boot_and_goes_again(site: Site) -> None:
    assert site.has(mount(), check=True).changed() == {"train-0": 1}
    assert site.there() == ""
    assert site.has(mount()).changed() == {"train-0": 1}
    assert site.there().split() == ["gpuprov-one", "1777"]
    probed, nothing = site.probed(PLACE), site.probed("/srv/nothing")
    assert (probed.hung, probed.status, nothing.mount) == (False, 0, None)
    assert probed.mount is not None
    assert (probed.mount.device, probed.mount.kind, probed.mount.read_only) == ("gpuprov-one", "tmpfs", False)
    # A boot wants it and waits for nothing of it.
    assert site.shell(f"systemctl is-enabled -- '{unit(PLACE)}'") == "enabled"
    orders = site.shell("systemctl show --property=After,Wants remote-fs.target multi-user.target").splitlines()
    assert [line.partition("=")[0] for line in orders if "srv-my" in line] == ["Wants"]
    # Somebody's rights stay, and what was lost comes back.
    site.shell(f"chmod 0750 {PLACE}")
    assert site.has(mount()).changed() == {"train-0": 0}
    assert site.there().split() == ["gpuprov-one", "750"]
    site.shell(f"umount {PLACE}")
    assert site.has(mount()).changed() == {"train-0": 1}
    # Another file system at the same place, though a job uses the first.
    site.shell(f"systemd-run --quiet --unit=test-job --working-directory={PLACE} sleep 600")
    assert site.has(mount("gpuprov-two")).changed() == {"train-0": 1}
    assert site.there().split() == ["gpuprov-two", "1777"]
    site.shell("systemctl stop test-job")
    assert site.has().changed() == {"train-0": 1}
    assert site.there() == ""
    assert "my" not in site.shell("ls /etc/systemd/system")


def test_the_nodes_own_timer_asks_them_too(site: Site) -> None:
    cluster = open_cluster(site.sandbox_cluster.file, sandbox=True)
    (group,) = build_plan(cluster.spec, cluster.lock).groups
    expected = expect(group.machine, group.gpu, group.stack, group.spec, catalog.load(), level="quick", simulated=True)
    health = {"every": "1h", "textfile": "/tmp/told", "expected": expected.to_json(), "archive": archive.digest()}
    played = site.has(
        {**mount(), "shows_type": "tmpfs", "shows_source": "gpuprov-one", "access": "rw"},
        tags="mounts,health", gpuprov_health=health, health_archive=str(archive.write_archive()),
    )  # fmt: skip
    try:
        assert played.changed()["train-0"] > 1
        look = f"{HEALTH} && grep '\"storage.shared\"' /tmp/told"
        assert site.shell(look).endswith(" 1")
        assert site.shell(f"umount {PLACE}; {look}").endswith(" 0")
    finally:
        site.shell("systemctl disable --now gpuprov-health.timer; rm -f /etc/systemd/system/gpuprov-health.*")


def test_nothing_that_is_there_is_hidden(site: Site) -> None:
    site.shell(f"mkdir -p {PLACE} && touch {PLACE}/mine")
    for check in (True, False):
        assert "holds files on the root disk" in site.has(mount(), check=check).failure("train-0")
    site.shell(f"rm {PLACE}/mine && mount -t tmpfs foreign {PLACE}")
    assert f"foreign is mounted at {PLACE}" in site.has(mount()).failure("train-0")
    assert site.there().split()[0] == "foreign"


def test_a_bucket_is_mounted_by_its_own_program_as_that_wants_it(site: Site) -> None:
    site.shell(STAND_IN)
    assert site.has(bucket(), check=True).changed() == {"train-0": 1}
    assert "No such file" in site.shell("cat /tmp/told")
    assert site.has(bucket()).changed() == {"train-0": 1}
    (command_line,) = site.shell("cat /tmp/told").splitlines()
    source, path, _o, options = command_line.split()
    assert (source, path) == ("s3://my-data/sets/", PLACE)
    assert {"ro", "nosuid", "nodev", "allow-other", "_netdev"} <= set(options.split(","))
    assert site.there().split()[0] == "mountpoint-s3"
    assert site.has(bucket()).changed() == {"train-0": 0}
    old = {"kernel": None, "packages": []}  # a node that is held to a lock without mount-s3
    assert site.has(bucket(), gpuprov_stack=old, check=True).changed() == {"train-0": 1}
    # Another bucket at the same place is known to the kernel by the same name.
    assert site.has(bucket("s3://my-out/", "rw")).changed() == {"train-0": 1}
    command_line = site.shell("cat /tmp/told").splitlines()[-1]
    assert (
        command_line.startswith("s3://my-out/ ") and "allow-delete" in command_line and "file-mode=0666" in command_line
    )
    assert site.shell("cat /proc/mounts").count("mountpoint-s3") == 1
    assert site.has().changed() == {"train-0": 1}
    assert site.there() == ""


FUSE = f"""cat >{S3} <<'END' && chmod 755 {S3}
#!/usr/bin/python3
import ctypes, os, sys, time
opened = os.open("/dev/fuse", os.O_RDWR)
said = f"fd={{opened}},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
libc = ctypes.CDLL(None, use_errno=True)
flags = 1 | 2 | 4  # ro, nosuid, nodev
if libc.mount(b"mountpoint-s3", sys.argv[2].encode(), b"fuse", flags, said):
    sys.exit(os.strerror(ctypes.get_errno()))
if os.fork() == 0:
    os.setsid()
    for number in (0, 1, 2):
        os.dup2(os.open("/dev/null", os.O_RDWR), number)
    time.sleep(600)
END"""
"""In place of mount-s3: a real file system in user space, whose process never answers."""


@pytest.mark.slow
def test_a_bucket_whose_process_hangs_is_seen_and_one_whose_process_ended_is_mounted_anew(site: Site) -> None:
    site.shell(FUSE)
    fuse_mount = {**bucket(), "shows_type": "fuse"}
    assert site.has(fuse_mount).changed() == {"train-0": 1}
    probed = site.probed(PLACE)
    assert probed.mount is not None
    assert (probed.mount.device, probed.mount.kind, probed.mount.read_only) == ("mountpoint-s3", "fuse", True)
    assert (probed.hung, probed.status) == (True, None)
    assert site.has(fuse_mount).changed() == {"train-0": 0}  # whoever is slow is left alone
    site.shell("pkill --full '^/usr/bin/python3 /.*mount.mount-s3 s3://my-data/sets/'; sleep 1")
    probed = site.probed(PLACE)
    assert (probed.hung, "not connected" in probed.error) == (False, True)
    assert site.has(fuse_mount).changed() == {"train-0": 1}
    assert site.shell("pgrep --full '^/usr/bin/python3 /.*mount.mount-s3'") != ""
    assert site.has().changed() == {"train-0": 1}
    assert "mountpoint-s3" not in site.shell("cat /proc/mounts")


def test_lustre_wants_the_kernel_that_its_modules_are_built_for(site: Site) -> None:
    lustre = mount("fs-1.fsx.us-east-1.amazonaws.com@tcp:/4gb3nbem", "lustre")
    other = {"kernel": "6.8.0-1066-aws", "packages": []}
    message = site.has(lustre, gpuprov_stack=other).failure("train-0")
    assert f"kernel {platform.release()} is running, and Lustre's modules are locked for 6.8.0-1066-aws" in message
    message = site.has(lustre).failure("train-0")
    assert "Lustre's modules do not load" in message or "is not mounted at" in message
    assert site.there() == ""


def test_a_server_that_is_gone_is_given_up_and_said(site: Site) -> None:
    site.shell("printf '#!/bin/sh\\nexec sleep 600\\n' >/usr/sbin/mount.gone && chmod 755 /usr/sbin/mount.gone")
    message = site.has(mount("server:/", "gone")).failure("train-0")
    assert f"server:/ is not mounted at {PLACE}" in message
    assert "timed out" in message.lower()
