"""Role dcgm_exporter: what the drop-ins of DCGM and its exporter say beside the vendors' units."""

from __future__ import annotations

import yaml

from provisioner.sandbox.sources import unit_file
from tests.support.sandbox_cluster import ROOT

ROLE = ROOT / "ansible/roles/dcgm_exporter"


def drop_ins() -> dict[str, str]:
    """Name of the variable → text of the drop-in, with the part that both share."""
    task = yaml.safe_load((ROLE / "tasks/install.yml").read_text(encoding="utf-8"))[1]
    shared = yaml.safe_load((ROLE / "defaults/main.yml").read_text(encoding="utf-8"))["dcgm_exporter_hardening"]
    return {
        name: file["content"].replace("{{ dcgm_exporter_hardening }}", shared) for name, file in task["vars"].items()
    }


def test_a_diagnostic_has_all_memory_of_the_node() -> None:
    """nvvs runs in DCGM's cgroup; killed for memory it would condemn a healthy node."""
    assert "MemoryMax" not in drop_ins()["dcgm_exporter_dcgm"]


def test_the_exporter_is_never_killed_for_memory() -> None:
    """A SIGKILL of it has frozen GPUs (github NVIDIA/dcgm-exporter#84)."""
    assert "MemoryMax" not in drop_ins()["dcgm_exporter_unit"]
    assert "\nMemoryHigh=" in drop_ins()["dcgm_exporter_unit"]


def test_what_the_exporter_says_is_in_the_journal() -> None:
    """Where a task that fails to start it looks; the vendor's unit writes a file of /var that nothing rotates."""
    assert "StandardError=append:/var/" in unit_file("nvidia-dcgm-exporter.service")
    lines = drop_ins()["dcgm_exporter_unit"].splitlines()
    assert {"StandardOutput=journal", "StandardError=journal"} <= set(lines)
