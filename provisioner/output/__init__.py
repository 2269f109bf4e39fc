"""The documents that `--json` prints, one module a command: stable, and part of `gpuprov schema`.

A value that a tool did not give is null. Facts may gain keys; nothing here is renamed or removed.
"""

from __future__ import annotations

from pydantic import BaseModel

from provisioner.output.bench import BenchOutput
from provisioner.output.bmc import BmcOutput
from provisioner.output.cost import CostOutput
from provisioner.output.doctor import DoctorOutput
from provisioner.output.down import DownOutput
from provisioner.output.error import ErrorOutput
from provisioner.output.facts import FactsOutput
from provisioner.output.gc import GcOutput
from provisioner.output.image import (
    ImageDiffOutput,
    ImageListOutput,
    ImageMoveOutput,
    ImageNightlyOutput,
    ImageOutput,
    ImagePruneOutput,
)
from provisioner.output.job import JobOutput, JobsOutput
from provisioner.output.maintain import MaintainOutput
from provisioner.output.monitoring import ExportOutput, MonitoringTestOutput
from provisioner.output.plan import PlanOutput
from provisioner.output.report import ReportOutput
from provisioner.output.size import SizeOutput
from provisioner.output.status import ClustersOutput, StatusOutput
from provisioner.output.upgrade import UpgradeOutput
from provisioner.output.validate import ValidateOutput

OUTPUTS: dict[str, type[BaseModel]] = {
    "validate": ValidateOutput,
    "report": ReportOutput,
    "facts": FactsOutput,
    "status": StatusOutput,
    "clusters": ClustersOutput,
    "plan": PlanOutput,
    "upgrade": UpgradeOutput,
    "maintain": MaintainOutput,
    "run": JobOutput,
    "run-list": JobsOutput,
    "down": DownOutput,
    "gc": GcOutput,
    "monitoring": ExportOutput,
    "monitoring-test": MonitoringTestOutput,
    "image-list": ImageListOutput,
    "image-diff": ImageDiffOutput,
    "image-move": ImageMoveOutput,
    "image-prune": ImagePruneOutput,
    "image-nightly": ImageNightlyOutput,
    "image": ImageOutput,
    "bench": BenchOutput,
    "cost": CostOutput,
    "size": SizeOutput,
    "bmc": BmcOutput,
    "doctor": DoctorOutput,
    "error": ErrorOutput,
}
"""Name of `gpuprov schema` → model."""
