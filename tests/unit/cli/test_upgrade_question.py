"""What a person reads before an upgrade: a block for each group, and a question that fits on a line."""

from __future__ import annotations

from provisioner.cli.lifecycle import _upgrade_details


def test_nodes_of_a_group_that_change_alike_are_one_block() -> None:
    new, more = ["driver 580.1 → 595.2", "12 packages"], ["driver 570.2 → 595.2"]
    moving = {"train-0": new, "train-1": new, "train-2": [], "infer-0": more}
    groups = {"train-0": "train", "train-1": "train", "train-2": "train", "infer-0": "infer"}
    assert _upgrade_details(moving, groups).splitlines() == [
        "train: 2 nodes (train-0, train-1)",
        "  driver 580.1 → 595.2",
        "  12 packages",
        "train: 1 node (train-2)",
        "  back to the lock that it had",
        "infer: 1 node (infer-0)",
        "  driver 570.2 → 595.2",
    ]


def test_a_large_group_is_named_by_a_few() -> None:
    moving = {f"n-{number}": ["driver 1 → 2"] for number in range(1000)}
    first = _upgrade_details(moving, dict.fromkeys(moving, "n")).splitlines()[0]
    assert first.startswith("n: 1000 nodes (n-0, ") and first.endswith("992 more)")
