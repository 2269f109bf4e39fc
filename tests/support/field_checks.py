"""The checks that test_field_faults.py proves: faults that operators of GPU fleets have reported."""

from __future__ import annotations

from provisioner.verify.checks import cabling, gds, kernel_taint, known_bad, nccl_ras, optics, roce_qos

AREA = (cabling, gds, kernel_taint, known_bad, nccl_ras, optics, roce_qos)
FIELD_CHECKS = {c.id for m in AREA for f in vars(m).values() if (c := getattr(f, "__check__", None)) is not None}
