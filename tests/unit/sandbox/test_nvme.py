"""nvme-cli on a sandbox node: what the probe asks, and faults of its disks."""

from __future__ import annotations

import json

from provisioner.sandbox import faults
from provisioner.verify.parsers.host_hardware import read_disks
from tests.support.sandbox_node import MakeNode, healthy

ASK = ("nvme", "smart-log", "/dev/nvme1", "--output-format=json")
REAL = {
    "critical_warning", "temperature", "avail_spare", "spare_thresh", "percent_used",
    "endurance_grp_critical_warning_summary", "data_units_read", "data_units_written", "host_read_commands",
    "host_write_commands", "controller_busy_time", "power_cycles", "power_on_hours", "unsafe_shutdowns", "media_errors",
    "num_err_log_entries", "warning_temp_time", "critical_comp_time",
}  # fmt: skip
"""Fields of nvme-cli 2.3 that every disk has (json_smart_log of nvme-print-json.c)."""


def test_it_has_the_fields_of_nvme_cli(make_node: MakeNode) -> None:
    assert set(json.loads(make_node("p4d.24xlarge").says(*ASK))) == REAL


def test_a_healthy_disk_is_read_as_one(make_node: MakeNode) -> None:
    (disk,) = read_disks({"nvme1": {"model": "x", "state": "live"}}, {"nvme1": make_node("p4d.24xlarge").says(*ASK)})
    assert (disk.warning, disk.wear, disk.spare, disk.media_errors) == (0, 0.02, 100, 0)


def test_faults_are_told_by_the_disk(make_node: MakeNode) -> None:
    node = make_node("p4d.24xlarge")
    bad = [faults.Active(name, None) for name in ("nvme-warns", "nvme-worn", "scratch-flash-fails")]
    node.become(faults.with_faults(healthy("p4d.24xlarge"), bad))
    smart_logs = [json.loads(node.says(*ASK)) for _ in range(2)]
    assert [(smart_log["critical_warning"], smart_log["percent_used"]) for smart_log in smart_logs] == [(4, 104)] * 2
    assert [smart_log["media_errors"] for smart_log in smart_logs] == [1, 2]
    other = json.loads(node.says("nvme", "smart-log", "/dev/nvme2", "--output-format=json"))
    assert (other["critical_warning"], other["percent_used"], other["media_errors"]) == (0, 2, 0)


def test_a_disk_that_is_gone_is_no_disk(make_node: MakeNode) -> None:
    node = make_node("p4d.24xlarge")
    code, out, err = node.run("nvme", "smart-log", "/dev/nvme77", "--output-format=json")
    assert (code, out) == (1, "") and "No such file" in err
    node.become(faults.with_faults(healthy("p4d.24xlarge"), [faults.Active("nvme-dead", None)]))
    assert node.run(*ASK)[0] == 1
