"""`gpuprov gc --cluster`: a cluster that is alive at one of its places is removed at none."""

from __future__ import annotations

import pytest

from provisioner.errors import GpuprovError
from provisioner.lifecycle.gc import Cluster, Remainder, chosen
from provisioner.providers.orphans import Thing


def at(site: str, alive: str = "", name: str = "train") -> Cluster:
    return Cluster(name, site, "eastus", (Thing("virtual machine", f"/vm/{site}", name, site, "eastus"),), alive)


@pytest.mark.parametrize("alive", [("/runs", ""), ("", "/runs"), ("/runs", "/runs")])
def test_a_cluster_that_is_alive_at_one_site_is_refused_at_all(alive: tuple[str, str]) -> None:
    both = Remainder((at("a", alive[0]), at("b", alive[1])), ())
    with pytest.raises(GpuprovError, match="train is alive here: /runs"):
        chosen(both, "train")


def test_a_cluster_that_is_alive_nowhere_is_chosen_at_all_its_places() -> None:
    both = Remainder((at("a"), at("b"), at("c", "/runs", name="other")), ())
    assert chosen(both, "train") == [at("a"), at("b")]
