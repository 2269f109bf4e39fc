"""A real Alertmanager with the routes of gpuprov."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from provisioner.monitoring import server_config, servers
from tests.support.prometheus import TOOLS


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL."""
    assert TOOLS.is_dir(), "run `make system-test`"
    folder = tmp_path_factory.mktemp("alertmanager")
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(server_config.alertmanager()))
    with servers.alertmanager(folder) as address:
        yield f"http://{address}"
