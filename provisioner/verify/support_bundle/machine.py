"""Which machine type of the catalogue outputs are from, where they tell it: by the maker's name for the machine, or by
whose cloud it is in together with the GPUs' model and number.

GPUs alone tell none: others build machines with the same ones, and the catalogue has not every type that is sold. Nor
does a cloud with a single GPU, which it sells in several sizes.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from provisioner.catalog import Catalog
from provisioner.catalog.models import Machine
from provisioner.common.errors import GpuprovError
from provisioner.verify.facts import Facts
from provisioner.verify.products import CUT, printed_memory, products

HYPERVISORS = (("amazonec2", "aws"), ("microsoftcorporation", "azure"), ("alibabacloud", "alicloud"),
               ("tencentcloud", "tencent"))  # fmt: skip
"""What clouds call their machines in DMI, without what is no letter or digit."""
KERNELS = (("-aws", "aws"), ("-azure", "azure"))
"""Ubuntu's kernels for clouds."""
MAKERS = ("dell", "hpe", "supermicro", "workstation", "poweredge")
_SIZE = re.compile(r"\b[a-z]{1,4}\d[a-z0-9]*(?:-[a-z0-9]+)?\.(?:\d*x?large|metal(?:-\d+xl)?)\b")
"""A size of AWS's, which its firmware names."""


@dataclass(frozen=True, slots=True)
class MachineEvidence:
    """What outputs show of a machine: the model that most of its GPUs have, their number (0: not known), and the cloud
    that it is in ("": not known)."""

    model: str
    count: int
    provider: str

    def __str__(self) -> str:
        return f"{self.count or '?'} x {self.model}" + (f" ({self.provider})" if self.provider else "")

    def has_count(self, machine: Machine) -> bool:
        """Whether the machine type has that many GPUs."""
        return self.count in (0, machine.gpu_count)

    def has_provider(self, machine: Machine) -> bool:
        """Whether the machine type is of that cloud."""
        return self.provider in ("", machine.provider)


def identify(facts: Facts, hints: str, catalog: Catalog) -> tuple[Machine, str]:
    """The machine type, and from what that follows. Raises GpuprovError where it is not told."""
    names = _plain(hints + " " + " ".join(facts.host.system or () if facts.host else ()))
    by_name = [m for m in catalog.machines() if (key := _key(m)) and key in names]
    # p4d.24xlarge is in p4d.24xlarge's name alone; dgxa100 in those of two.
    if len({m.name for m in by_name}) == 1:
        return by_name[0], f"its firmware calls it {by_name[0].name}"
    evidence = MachineEvidence(_model(facts), _count(facts), _provider(facts, names))
    if not by_name and (size_match := _SIZE.search(hints)):
        raise GpuprovError(f"{size_match[0]} is not a machine of the catalogue")
    with_model = [m for m in by_name or catalog.machines() if _has(m, evidence.model, facts, catalog)]
    with_count = [m for m in with_model if evidence.has_count(m)]
    matches = [m for m in with_count if evidence.has_provider(m)]
    if evidence.count == 1 and not evidence.provider and facts.listed_by:
        matches = with_model  # a line about one GPU may be from any machine that has such GPUs
    if len(matches) == 1 and (by_name or (evidence.count > 1 and evidence.provider not in ("", "baremetal"))):
        return matches[0], str(evidence)
    if len(matches) == 1:
        raise GpuprovError(f"{evidence} could be {matches[0].name}, or a machine that the catalogue has not")
    larger = [m for m in with_model if m.gpu_count > evidence.count and evidence.has_provider(m)]
    # Of no machine's number: some of its GPUs are lost, or the list is a part of one. Which it is nobody can tell.
    is_part = bool(larger) and not with_count
    candidates = ", ".join(m.name for m in (matches or with_count or larger)[:8])
    if not candidates:
        raise GpuprovError(f"{evidence} is not a machine of the catalogue")
    raise GpuprovError(f"{evidence} could be {'a part of one' if is_part else 'any'} of {candidates}")


def _model(facts: Facts) -> str:
    """The model that most GPUs have, as its maker prints it. Raises GpuprovError where none is listed."""
    models = Counter(gpu.model for gpu in (facts.smi.gpus if facts.smi else ()) if gpu.model and not gpu.lost)
    models = models or Counter(gpu.model for gpu in (facts.rocm.gpus if facts.rocm else ()) if gpu.model)
    if not models:
        raise GpuprovError("no GPU and no firmware tells which machine it is; pass --machine if it has no GPU")
    return models.most_common(1)[0][0]


def _provider(facts: Facts, names: str) -> str:
    """Whose cloud the machine is in, by its firmware's `names`, its kernel or its network; "" where none tells."""
    in_firmware = next(
        (provider for pattern, provider in HYPERVISORS if pattern in names), "baremetal" if names else ""
    )
    of_kernel = next((p for end, p in KERNELS if facts.kernel and facts.kernel.endswith(end)), "")
    return in_firmware or of_kernel or ("aws" if facts.efa is not None and facts.efa.devices else "")


def _has(machine: Machine, model: str, facts: Facts, catalog: Catalog) -> bool:
    """Whether its GPUs may print that name; of a name that a table has cut their memory decides."""
    memory = printed_memory(facts) if model.endswith(CUT) else None
    return bool(products([model], [catalog.gpu(machine.gpu_model)], memory_mib=memory))


def _count(facts: Facts) -> int:
    """GPUs that were there once: those listed, those that cannot be opened, those on the bus. 0 where nobody tells."""
    if facts.smi is not None and facts.smi.excerpt:
        return len(facts.bus.gpus) if facts.bus else 0
    listed = len(facts.smi.gpus) + len(set(facts.smi.unreachable)) if facts.smi else facts.gpus_present or 0
    attached = facts.smi.attached_gpus or 0 if facts.smi else 0
    return max(listed, attached, len(facts.bus.gpus) if facts.bus else 0)


def _key(machine: Machine) -> str:
    """What its maker would call it in DMI: p4d24xlarge, dgxh100, sys821getnhr."""
    name = _plain(re.sub(r"-(?:40|80)gb$", "", machine.name))
    for maker in MAKERS:
        name = name.removeprefix(maker)
    return name if re.search(r"[0-9]", name) and len(name) >= 6 and machine.provider in ("aws", "baremetal") else ""


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
