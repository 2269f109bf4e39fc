"""Facts as one JSON object: what `gpuprov facts` prints and a report keeps of each node."""

from __future__ import annotations

from typing import Any

from provisioner.verify.document import asdict
from provisioner.verify.facts import ORDERED, Facts
from provisioner.verify.parsers import nvidia_smi


def facts_document(facts: Facts) -> dict[str, Any]:
    """The facts with stable keys, each as its tool declares it; null where the tool reported no value."""
    document: dict[str, Any] = {"simulated": True} if facts.simulated else {}
    document |= _gpus(facts)
    for tool in ORDERED:
        value = facts.value(tool.field)
        for key, entry in tool.entries.items():
            document[key] = None if value is None else entry(value)
    document["error"] = facts.error or None
    document["unreadable"] = [
        {"file": name, "reason": source.reason}
        for name, source in facts.sources.items()
        if source.state in ("unreadable", "hung", "missing")
    ]
    return document


def facts_entry(facts: Facts, key: str) -> Any:
    """One value of the document; LookupError for a key that no tool declares."""
    tool = next(tool for tool in ORDERED if key in tool.entries)
    value = facts.value(tool.field)
    return None if value is None else tool.entries[key](value)


def _gpus(facts: Facts) -> dict[str, Any]:
    """What nvidia-smi and rocm-smi say of the same things: an AMD GPU has all keys of an NVIDIA one, mostly null."""
    if facts.smi is not None:
        listed = [
            asdict(gpu) | {"ecc_uncorrectable": gpu.ecc_uncorrectable, "throttle": list(gpu.throttle)}
            for gpu in facts.smi.gpus
        ]
        return {"driver_version": facts.smi.driver_version, "gpus": listed}
    if facts.rocm is None:
        return {"driver_version": None, "gpus": None}
    cards = []
    for card in facts.rocm.gpus:
        empty = asdict(nvidia_smi.Gpu(index=card.index)) | {"ecc_uncorrectable": None, "lost": False, "throttle": []}
        cards.append(empty | asdict(card))
    return {"driver_version": facts.rocm.driver_version, "gpus": cards}
