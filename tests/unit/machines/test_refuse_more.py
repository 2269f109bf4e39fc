"""What `replace` accepts of a plan: new machines for its nodes, what goes with them, and nothing else."""

from __future__ import annotations

import pytest

from provisioner.common.errors import ProviderError
from provisioner.machines.base import Action, Planned

NEW = Action("replace", "instance", "train-0")


def planned(*actions: Action) -> Planned:
    return Planned("here", actions=actions)


@pytest.mark.parametrize("kind", ["replace", "create"])
def test_a_new_machine_with_its_own_volume_is_accepted(kind: str) -> None:
    volume = Action("delete", "volume", "train-0", attached=True)
    planned(Action(kind, "instance", "train-0"), volume).refuse_more(["train-0"], ["train-0"])


@pytest.mark.parametrize("kind", ["delete", "update"])
def test_a_machine_that_is_only_deleted_or_changed_is_refused(kind: str) -> None:
    with pytest.raises(ProviderError, match=f"would also {kind} instance"):
        planned(Action(kind, "instance", "train-0")).refuse_more(["train-0"], ["train-0"])


def test_a_new_volume_is_no_new_machine() -> None:
    volume = Action("replace", "volume", "train-0", attached=True)
    with pytest.raises(ProviderError, match="would not recreate train-0"):
        planned(volume).refuse_more(["train-0"], ["train-0"])


def test_each_node_needs_its_own_machine() -> None:
    with pytest.raises(ProviderError, match="would not recreate train-1"):
        planned(NEW).refuse_more(["train-0", "train-1"], ["train-0", "train-1"])
    planned(NEW).refuse_more(["train-0", "train-1"], ["train-0"])


@pytest.mark.parametrize("other", [Action("replace", "other", "train-1"), Action("update", "network")])
def test_nothing_else_may_be_touched(other: Action) -> None:
    with pytest.raises(ProviderError, match=f"would also {other.what} {other.name}"):
        planned(NEW, other).refuse_more(["train-0"], ["train-0"])


def test_what_belongs_to_another_node_may_not_be_touched() -> None:
    with pytest.raises(ProviderError, match="would also replace volume"):
        planned(NEW, Action("replace", "volume", "train-1", attached=True)).refuse_more(["train-0"], ["train-0"])
