"""What the table of files says of damaged ones is what their readers do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ClusterPaths, private_dir
from provisioner.lifecycle import acknowledgements, baselines
from provisioner.lifecycle.maintain import journal as maintenance_journal
from provisioner.lifecycle.quarantine import book
from provisioner.lifecycle.replace.journal import Journal as ReplaceJournal
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.machines.journal import Journal
from provisioner.machines.providers.capacity import Choices
from provisioner.rundir import benchmarks, fleet, intent, maintained, node_state, records
from provisioner.rundir.files import FILES
from provisioner.rundir.release import Ledger
from provisioner.transport import ssh_pins

SITE = "sites/*/"
READERS: dict[str, Callable[[ClusterPaths], object]] = {
    "nodes.json": fleet.load,
    "intent.json": intent.load,
    "state.json": node_state.load,
    "applied.json": Ledger,
    "quarantine.json": book.load,
    "replace.json": lambda paths: records.load(paths, ReplaceJournal),
    "upgrade.json": upgrade_journal.load,
    "maintenance.json": maintenance_journal.load,
    "maintained.json": maintained.load,
    "acknowledged.json": acknowledgements.load,
    "baseline.json": baselines.load,
    "bench.json": benchmarks.load,
    "ssh/pins.json": ssh_pins.load_pins,
    f"{SITE}capacity.json": lambda paths: Choices.read(paths.site("here")),
    f"{SITE}bmc.json": lambda paths: Journal(paths.site("here") / "bmc.json").load(),
    f"{SITE}netboot.json": lambda paths: Journal(paths.site("here") / "netboot.json").load(),
}
DAMAGED = {row.pattern: row.damaged for row in FILES}


@pytest.mark.parametrize("text", ["{", "7", "[[]]"])
@pytest.mark.parametrize("pattern", READERS)
def test_a_damaged_file_is_refused_or_ignored_as_the_table_says(pattern: str, text: str, tmp_path: Path) -> None:
    paths = ClusterPaths(tmp_path / "cluster.yaml", "vision", sandbox=False)
    missing = READERS[pattern](paths)
    file = paths.root / pattern.replace("*", "here")
    private_dir(file.parent)
    file.write_text(text)
    if DAMAGED[pattern] == "refused":
        with pytest.raises(GpuprovError, match="damaged") as raised:
            READERS[pattern](paths)
        assert (raised.value.where, bool(raised.value.hint)) == (str(file), True)
    else:
        assert DAMAGED[pattern] == "ignored"
        assert READERS[pattern](paths) == missing


def test_the_table_says_it_of_every_shared_json_file() -> None:
    assert [row.pattern for row in FILES if row.sharing == "shared" and row.pattern.endswith(".json")] == [
        pattern for pattern in DAMAGED if pattern in READERS or pattern == f"{SITE}site.json"
    ]
    assert all(row.damaged for row in FILES if row.sharing == "shared" and row.pattern.endswith(".json"))
