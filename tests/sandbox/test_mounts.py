"""Role mounts on a real node, with file systems in memory in place of the network's: what it makes and refuses."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from provisioner import ssh
from provisioner.mounts import unit
from provisioner.paths import ClusterPaths
from provisioner.verify.collect import ProbeRequest, collect
from provisioner.verify.parsers import shared
from tests.support.playbook import Played, play
from tests.support.rehearsal import Rehearsal

pytestmark = pytest.mark.sandbox

PLACE = "/srv/my-data"


def mount(source: str = "gpuprov-one", kind: str = "tmpfs", path: str = PLACE) -> dict[str, str]:
    return {"type": kind, "source": source, "path": path, "options": "size=1m,mode=0755,_netdev", "unit": unit(path)}


class Site:
    """The node's site with these file systems, as the role is told."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal

    def has(self, *mounts: dict[str, str], check: bool = False, **variables: Any) -> Played:
        given = {"mounts_patience": 0, "mounts_timeout": 3, "mounts_distribution_packages": [], **variables}
        given["gpuprov_mounts"] = {"virginia": list(mounts)}
        return play(self.rehearsal, tags="mounts", variables=given, check=check)

    def shell(self, script: str) -> str:
        (name,) = (name for name in self.rehearsal.containers() if "train-0" in name)
        done = subprocess.run(["podman", "exec", name, "sh", "-c", script], capture_output=True, text=True,
                              timeout=120, check=False)  # fmt: skip
        return (done.stdout + done.stderr).strip()

    def probed(self, path: str) -> shared.Shared:
        """What the probe finds at a path."""
        name = self.rehearsal.name
        target = ssh.argv(ClusterPaths(self.rehearsal.file, name, sandbox=True), "train-0")
        bundle = collect({"train-0": target}, ProbeRequest({"shared.json": 20}, shared=(path,)))["train-0"]
        (found,) = shared.parse(bundle.files["shared.json"].text)
        return found

    def there(self, path: str = PLACE) -> str:
        """Source and mode of what is mounted, empty for nothing."""
        return self.shell(f"findmnt --noheadings --output SOURCE {path} && stat --format=%a {path} || :")


@pytest.fixture
def site(lone: Rehearsal) -> Iterator[Site]:
    found = Site(lone)
    yield found
    name = f"'{unit(PLACE)}'"
    found.shell(f"systemctl disable --now {name}; umount {PLACE}; cd /etc/systemd/system && rm -f {name}")
    found.shell(f"rm -rf {PLACE} /usr/sbin/mount.gone; systemctl daemon-reload; systemctl reset-failed")


def test_what_is_asked_for_is_mounted_once_and_at_boot_and_goes_again(site: Site) -> None:
    assert site.has(mount(), check=True).changed() == {"train-0": 1}
    assert site.there() == ""
    assert site.has(mount()).changed() == {"train-0": 1}
    assert site.there().split() == ["gpuprov-one", "1777"]
    seen, nothing = site.probed(PLACE), site.probed("/srv/nothing")
    assert (seen.hung, seen.status, nothing.mount) == (False, 0, None)
    assert seen.mount is not None
    assert (seen.mount.device, seen.mount.kind, seen.mount.read_only) == ("gpuprov-one", "tmpfs", False)
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


def test_nothing_that_is_there_is_hidden(site: Site) -> None:
    site.shell(f"mkdir -p {PLACE} && touch {PLACE}/mine")
    for check in (True, False):
        assert "holds files on the root disk" in site.has(mount(), check=check).failure("train-0")
    site.shell(f"rm {PLACE}/mine && mount -t tmpfs foreign {PLACE}")
    assert f"foreign is mounted at {PLACE}" in site.has(mount()).failure("train-0")
    assert site.there().split()[0] == "foreign"


def test_a_server_that_is_gone_is_given_up_and_said(site: Site) -> None:
    site.shell("printf '#!/bin/sh\\nexec sleep 600\\n' >/usr/sbin/mount.gone && chmod 755 /usr/sbin/mount.gone")
    said = site.has(mount("server:/", "gone")).failure("train-0")
    assert f"server:/ is not mounted at {PLACE}" in said
    assert "timed out" in said.lower()
