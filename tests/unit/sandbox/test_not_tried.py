"""What of cluster.yaml says how real machines are made and reached is named where it is not tried."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from provisioner.lifecycle.session import open_cluster

FILE = """name: fleet
sites:
  virginia: {{ provider: aws, region: us-east-1{more} }}
  oregon: {{ provider: aws, region: us-west-2, tags: {{ team: vision }} }}
groups:
  train: {{ machine: p4d.24xlarge, site: virginia }}
{access}
"""


@pytest.mark.parametrize(
    ("more", "access", "keys"),
    [
        ("", "", ""),
        (", zones: [us-east-1a]", "", ""),
        (", jump: ubuntu@bastion", "", ""),
        (", internet: nat", "access: { ssh_key: ~/key }", "sites.virginia.internet, access.ssh_key"),
        ("", "access: { allow: [203.0.113.0/24], user: ops }", "access.allow"),
    ],
)
def test_keys_that_nothing_tries(more: str, access: str, keys: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(FILE.format(more=more, access=access))
    cluster = open_cluster(file, sandbox=True)
    plan = cast(Any, SimpleNamespace(spec=cluster.spec, groups=()))
    messages = {
        site: [f.message for f in cluster.providers.at(site).preflight(plan, ()) if f.message.startswith("nothing in")]
        for site in ("virginia", "oregon")
    }
    assert messages["oregon"] == ["nothing in the sandbox tries sites.oregon.tags"]
    assert messages["virginia"] == ([f"nothing in the sandbox tries {keys}"] if keys else [])
