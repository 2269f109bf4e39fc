"""The documents that `--json` prints, one module a command: stable, and part of `gpuprov schema`.

A value that a tool did not give is null. Facts may gain keys; nothing here is renamed or removed.
"""

from __future__ import annotations

from pydantic import BaseModel

from provisioner.documents.bmc import BmcOutput
from provisioner.documents.cost import CostOutput
from provisioner.documents.doctor import DoctorOutput
from provisioner.documents.down import DownOutput
from provisioner.documents.error import ErrorOutput
from provisioner.documents.facts import FactsOutput
from provisioner.documents.gc import GcOutput
from provisioner.documents.image import (
    ImageDiffOutput,
    ImageListOutput,
    ImageMoveOutput,
    ImageNightlyOutput,
    ImageOutput,
    ImagePruneOutput,
)
from provisioner.documents.plan import PlanOutput
from provisioner.documents.report import ReportOutput
from provisioner.documents.status import ClustersOutput, StatusOutput
from provisioner.documents.upgrade import UpgradeOutput
from provisioner.documents.validate import ValidateOutput

OUTPUTS: dict[str, type[BaseModel]] = {
    "validate": ValidateOutput,
    "report": ReportOutput,
    "facts": FactsOutput,
    "status": StatusOutput,
    "clusters": ClustersOutput,
    "plan": PlanOutput,
    "upgrade": UpgradeOutput,
    "down": DownOutput,
    "gc": GcOutput,
    "image-list": ImageListOutput,
    "image-diff": ImageDiffOutput,
    "image-move": ImageMoveOutput,
    "image-prune": ImagePruneOutput,
    "image-nightly": ImageNightlyOutput,
    "image": ImageOutput,
    "cost": CostOutput,
    "bmc": BmcOutput,
    "doctor": DoctorOutput,
    "error": ErrorOutput,
}
"""Name of `gpuprov schema` → model."""
