"""The solver on components made up: what a key takes with it when it is taken away, and what keeping a lock costs."""

from __future__ import annotations

import pytest

from provisioner.stack.candidates import Candidate
from provisioner.stack.resolve import Need, Problem, Unsolvable, resolve


def versions(problem: Problem) -> dict[str, str]:
    return {name: candidate.version for name, candidate in resolve(problem).items()}


def candidates(name: str, *numbers: str, **needs: dict[str, str]) -> list[Candidate]:
    """The first is preferred; `v2={…}`: what version 2 needs."""
    return [Candidate(name, n, needs.get(f"v{n}", {}), rank=(position,)) for position, n in enumerate(numbers)]


def test_a_component_that_goes_with_its_key_takes_all_that_is_asked_of_it() -> None:
    problem = Problem(
        (Need("torch", pin="2", path="stack.torch"), Need("torch", spec=">=1", path="groups.train")),
        {"torch": candidates("torch", "2", "1"), "cuda": candidates("cuda", "12")},
        only_for={"torch": "stack.torch"},
    )
    assert versions(problem) == {"torch": "2", "cuda": "12"}
    assert versions(problem.without("stack.torch")) == {"cuda": "12"}
    assert versions(problem.without("stack.torch", keep_component=True)) == {"torch": "2", "cuda": "12"}
    assert versions(problem.without("groups.train")) == {"torch": "2", "cuda": "12"}


def test_a_locked_version_stays_where_it_goes_with_what_is_asked_for() -> None:
    either = {"driver": candidates("driver", "2", "1"), "cuda": candidates("cuda", "2", "1")}
    assert versions(Problem((), either, keep={"cuda": "1"})) == {"driver": "2", "cuda": "1"}


def test_a_locked_version_moves_nothing_that_was_chosen_before_it() -> None:
    both = {"driver": candidates("driver", "2", "1"), "cuda": candidates("cuda", "2", "1", v1={"driver": "<2"})}
    needs = (Need("driver", path="stack.driver"),)
    assert versions(Problem(needs, both, keep={"cuda": "1"})) == {"driver": "2", "cuda": "2"}


def test_what_cannot_be_together_is_unsolvable() -> None:
    both = {"driver": candidates("driver", "2"), "cuda": candidates("cuda", "1", v1={"driver": "<2"})}
    with pytest.raises(Unsolvable):
        resolve(Problem((), both))
