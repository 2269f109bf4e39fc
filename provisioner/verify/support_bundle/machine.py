"""Which machine type of the catalogue outputs are from, where they tell it: by the maker's name for the machine, or by
whose cloud it is in together with the GPUs' model and number.

GPUs alone tell none: others build machines with the same ones, and the catalogue has not every type that is sold. Nor
does a cloud with a single GPU, which it sells in several sizes.
"""

from __future__ import annotations

import re
from collections import Counter

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


def identify(facts: Facts, hints: str, catalog: Catalog) -> tuple[Machine, str]:
    """The machine type, and from what that follows. Raises GpuprovError where it is not told."""
    names = _plain(hints + " " + " ".join(facts.host.system or () if facts.host else ()))
    by_name = [m for m in catalog.machines() if (key := _key(m)) and key in names]
    # p4d.24xlarge is in p4d.24xlarge's name alone; dgxa100 in those of two.
    if len({m.name for m in by_name}) == 1:
        return by_name[0], f"its firmware calls it {by_name[0].name}"
    models = Counter(gpu.model for gpu in (facts.smi.gpus if facts.smi else ()) if gpu.model and not gpu.lost)
    models = models or Counter(gpu.model for gpu in (facts.rocm.gpus if facts.rocm else ()) if gpu.model)
    if not models:
        raise GpuprovError("no GPU and no firmware tells which machine it is")
    model = models.most_common(1)[0][0]
    count = _count(facts)
    alike = [
        m
        for m in by_name or catalog.machines()
        if _has(m, model, facts, catalog) and (not count or m.gpu_count == count)
    ]
    provider_name = next(
        (provider for pattern, provider in HYPERVISORS if pattern in names), "baremetal" if names else ""
    )
    provider_name = provider_name or next((p for end, p in KERNELS if facts.kernel and facts.kernel.endswith(end)), "")
    if not provider_name and facts.efa is not None and facts.efa.devices:
        provider_name = "aws"
    remaining = [] if alike else [m for m in by_name or catalog.machines() if _has(m, model, facts, catalog)]
    # Of no machine's number: some of its GPUs are lost, or the list is a part of one. Which it is nobody can tell.
    remaining = [m for m in remaining if m.gpu_count > count and (not provider_name or m.provider == provider_name)]
    matches = [m for m in alike if m.provider == provider_name] if provider_name else alike
    description = f"{count or '?'} x {model}" + (f" ({provider_name})" if provider_name else "")
    if not by_name and (size_match := _SIZE.search(hints)):
        raise GpuprovError(f"{size_match[0]} is not a machine of the catalogue")
    if (
        not provider_name and count == 1 and facts.listed_by
    ):  # a line about one GPU may be from any machine that has such GPUs
        matches = [m for m in by_name or catalog.machines() if _has(m, model, facts, catalog)]
    if len(matches) == 1 and (by_name or (count > 1 and provider_name not in ("", "baremetal"))):
        return matches[0], description
    if len(matches) == 1:
        raise GpuprovError(f"{description} could be {matches[0].name}, or a machine that the catalogue has not")
    candidates = ", ".join(m.name for m in (matches or alike or remaining)[:8])
    if not candidates:
        raise GpuprovError(f"{description} is not a machine of the catalogue")
    raise GpuprovError(f"{description} could be {'a part of one' if remaining else 'any'} of {candidates}")


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
