"""Which packages are locked: dependencies as Debian means them, judged by trying every set of packages there is."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.common.errors import GpuprovError
from provisioner.stack import closure
from provisioner.stack.models import Package
from provisioner.stack.package_index import PackageIndex, Relation, newest_first, read, relations, release
from tests.support.vendors import deb, driver_debs


def available(*texts: str, **repositories: str) -> PackageIndex:
    """Texts are the list of a repository `cuda`; others come by their name."""
    lists = {"cuda": ("\n".join(texts),)} if texts else {}
    return PackageIndex(lists | {name.replace("_", "-"): (text,) for name, text in repositories.items()})


def stanza(name: str, version: str, **fields: str) -> str:
    return deb(name, version, **fields).control()


def requested_packages(*items: str, part: str = "nccl", repository: str = "cuda") -> list[Package]:
    """name=version"""
    parts = (item.partition("=") for item in items)
    return [
        Package.model_validate({"name": n, "version": v, "repository": repository, "part": part}) for n, _, v in parts
    ]


def close(shelf_: PackageIndex, *items: str, keep: Mapping[str, str] | None = None) -> dict[str, str]:
    return {p.name: p.version for p in closure.close(requested_packages(*items), shelf_, keep=keep or {})}


def refused(shelf_: PackageIndex, *items: str) -> str:
    with pytest.raises(GpuprovError) as caught:
        close(shelf_, *items)
    assert caught.value.hint
    assert len(str(caught.value).splitlines()) <= 6
    return str(caught.value)


A = stanza("a", "1", Depends="b (>= 2), c | d, distro-only (>= 9)", Pre_Depends="e")
REST = (stanza("b", "1"), stanza("b", "3"), stanza("b", "2"), stanza("c", "1"), stanza("d", "1"), stanza("e", "1:0~1"))


def test_what_is_needed_and_no_more() -> None:
    assert close(available(A, *REST, stanza("other", "1")), "a=1") == {"a": "1", "b": "3", "c": "1", "e": "1:0~1"}


def test_an_alternative_that_is_there_anyway_is_taken() -> None:
    assert close(available(A, *REST), "a=1", "d=1") == {"a": "1", "b": "3", "d": "1", "e": "1:0~1"}


def test_an_alternative_of_the_vendor_before_one_of_the_distribution() -> None:
    index = available(stanza("a", "1", Depends="distro | mine"), stanza("mine", "1"))
    assert close(index, "a=1") == {"a": "1", "mine": "1"}


def test_an_alternative_of_the_distribution_where_the_vendor_s_can_t_be() -> None:
    index = available(stanza("a", "1", Depends="mine | distro", Conflicts="mine"), stanza("mine", "1"))
    assert close(index, "a=1") == {"a": "1"}


def test_virtual_packages() -> None:
    index = available(
        stanza("a", "1", Depends="virtual"),
        stanza("b", "1", Depends="virtual (>= 2)"),
        stanza("one", "1", Provides="virtual, other"),
        stanza("two", "1", Provides="virtual (= 2)"),
    )
    assert close(index, "a=1") == {"a": "1", "one": "1"}
    assert close(index, "b=1") == {"b": "1", "two": "1"}
    assert close(index, "a=1", "b=1") == {"a": "1", "b": "1", "two": "1"}


def test_a_real_package_before_a_virtual_one() -> None:
    index = available(stanza("a", "1", Depends="thing"), stanza("zzz", "9", Provides="thing"), stanza("thing", "1"))
    assert close(index, "a=1") == {"a": "1", "thing": "1"}


def test_a_package_does_not_conflict_with_itself() -> None:
    index = available(stanza("a", "1", Provides="v", Conflicts="v", Depends="v | x"), stanza("x", "1", Provides="v"))
    assert close(index, "a=1") == {"a": "1"}


def test_conflicts_are_respected_where_there_is_another_way() -> None:
    index = available(
        stanza("a", "1", Depends="b, c"), stanza("b", "2", Breaks="c (<< 2)"), stanza("b", "1"), stanza("c", "1"),
    )  # fmt: skip
    assert close(index, "a=1") == {"a": "1", "b": "1", "c": "1"}


def test_a_conflict_is_told_with_both_sides() -> None:
    index = available(
        stanza("a", "1", Depends="lib (= 1)"), stanza("b", "1", Depends="mid"), stanza("mid", "1", Depends="lib (= 2)"),
        stanza("lib", "1"), stanza("lib", "2"),
    )  # fmt: skip
    message = refused(index, "a=1", "b=1")
    assert "a 1 (repository cuda) depends on lib (= 1)" in message
    assert "mid 1 (repository cuda, for b) depends on lib (= 2)" in message
    assert "available versions of lib: 2, 1" in message


def test_packages_that_can_t_be_beside_each_other() -> None:
    message = refused(available(stanza("a", "1", Conflicts="b"), stanza("b", "1")), "a=1", "b=1")
    assert "a 1 (repository cuda) conflicts with b" in message


def test_a_version_that_nobody_has_of_what_is_needed() -> None:
    message = refused(available(stanza("a", "1", Depends="b (>= 9)"), stanza("b", "1"), stanza("b", "2")), "a=1")
    assert "a 1 (repository cuda) depends on b (>= 9)" in message
    assert "available versions of b: 2, 1" in message


def test_a_version_that_is_not_there_names_the_newest_that_are() -> None:
    index = available(*(stanza("a", f"1.{n}-1") for n in range(12)))
    message = refused(index, "a=2.0-1")
    assert "repository cuda has no a 2.0-1; newest there: 1.11-1, 1.10-1, 1.9-1, 1.8-1, 1.7-1\n" in message
    assert "stack.nccl" in message


def test_a_package_that_is_not_there_names_those_like_it() -> None:
    message = refused(available(stanza("libnccl2", "1"), stanza("libnccl-dev", "1")), "libnccl3=1")
    assert "repository cuda has no package libnccl3\n  similar names there: libnccl2" in message


def test_a_package_of_another_repository_is_not_the_one() -> None:
    index = available(stanza("b", "1"), container_toolkit=stanza("a", "1"))
    assert "repository cuda has no package a" in refused(index, "a=1")


@pytest.mark.parametrize(
    ("requested", "available_versions", "taken"),
    [
        ("580.173.02-1", ["580.173.02-0ubuntu1", "580.173.02-1ubuntu1", "595.1-1"], "580.173.02-1ubuntu1"),
        ("580.173.02-1", ["580.173.02-1", "580.173.02-1ubuntu1"], "580.173.02-1"),
        ("2.27.7-1+cuda13.0", ["2.27.7-2+cuda12.9", "2.27.7-2+cuda13.0", "2.27.7-1"], "2.27.7-2+cuda13.0"),
        ("2.21.5-1+cuda12.3", ["2.21.5-1+cuda12.5", "2.21.5-1+cuda12.2", "2.21.5-1+cuda11.0"], "2.21.5-1+cuda12.2"),
        ("2.21.5-1+cuda12.1", ["2.21.5-1+cuda12.5", "2.21.5-1+cuda12.2", "2.22.3-1+cuda12.1"], "2.21.5-1+cuda12.2"),
        ("2.21.5-1+cuda13.0", ["2.21.5-1+cuda12.5", "2.22.3-1+cuda13.0"], None),
        ("1:4.6.0-1", ["4.6.0-1", "1:4.6.0-2"], "1:4.6.0-2"),
        ("1:3.3.9", ["1:3.3.9-1"], "1:3.3.9-1"),
        ("580.173-1", ["580.173.02-1"], None),
    ],
)
def test_the_revision_is_the_repository_s(requested: str, available_versions: Sequence[str], taken: str | None) -> None:
    index = available(*(stanza("a", version) for version in available_versions))
    if taken is None:
        assert "has no a" in refused(index, f"a={requested}")
    else:
        assert close(index, f"a={requested}") == {"a": taken}


def test_what_is_locked_stays_where_it_fits() -> None:
    index = available(stanza("a", "1", Depends="b (>= 2)"), stanza("b", "1"), stanza("b", "2"), stanza("b", "3"))
    assert close(index, "a=1", keep={"b": "2"})["b"] == "2"
    assert close(index, "a=1", keep={"b": "1"})["b"] == "3"


def test_any_version_that_will_do_is_the_newest_of_its_own_repository() -> None:
    other = "\n".join(stanza("efa-config", v) for v in ("1.9-1", "1.10-1", "1.10~rc1-1"))
    index = available(stanza("efa-config", "7"), efa=other)
    packages = closure.close(requested_packages("efa-config=1.50.0-1", part="efa", repository="efa"), index, keep={})
    assert [(p.version, p.repository) for p in packages] == [("1.10-1", "efa")]
    pinned_packages = closure.close(
        requested_packages("efa-config=1.50.0-1", part="efa", repository="efa"), index, keep={"efa-config": "1.9-1"}
    )
    assert pinned_packages[0].version == "1.9-1"


def test_parts_and_their_order() -> None:
    index = available(
        stanza("z", "1", Depends="shared, y"), stanza("y", "1", Depends="x"), stanza("x", "1"),
        stanza("n", "1", Depends="shared, own"), stanza("shared", "1"), stanza("own", "1"),
    )  # fmt: skip
    packages = closure.close(
        [*requested_packages("z=1", part="driver"), *requested_packages("n=1", part="cuda")], index, keep={}
    )
    assert [(p.name, p.part, p.asked) for p in packages] == [
        ("z", "driver", True), ("shared", "driver", False), ("x", "driver", False), ("y", "driver", False),
        ("n", "cuda", True), ("own", "cuda", False),
    ]  # fmt: skip


@pytest.mark.parametrize("version", ["570.211.01", "580.105.08", "580.173.02", "595.91.07"])
def test_a_driver_is_of_one_release(version: str) -> None:
    index = available("\n".join(d.control() for d in driver_debs()))
    version_by_name = close(index, f"nvidia-open={version}-1")
    assert len(version_by_name) == 9
    assert {release(v) for v in version_by_name.values()} == {release(f"{version}-1")}


def test_a_dependency_that_can_t_be_read_is_said_when_it_matters() -> None:
    index = available(stanza("a", "1", Depends="${misc:Depends}"), stanza("b", "1"))
    assert close(index, "b=1") == {"b": "1"}
    assert "invalid dependencies of a 1: '${misc:Depends}' is not a dependency" in refused(index, "a=1")


# ── the parser ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_relations() -> None:
    text = "python3:any (>= 3.9~), a | b (<< 2:1.0-1) |c(=1),\n d (>> 1),"
    assert relations(text) == (
        (Relation("python3", ">=", "3.9~"),),
        (Relation("a"), Relation("b", "<<", "2:1.0-1"), Relation("c", "=", "1")),
        (Relation("d", ">>", "1"),),
    )
    assert [str(r) for r in relations(text)[1]] == ["a", "b (<< 2:1.0-1)", "c (= 1)"]


@pytest.mark.parametrize(
    "text",
    ["a b", "a (1)", "a (>= )", "a (== 1)", "(>= 1)", "a (>= 1) x", "a [amd64]", "a | ", "| a", "${shlibs}", "ä",
     "a (>= 1,0)", "a (>= -1)", "a (>= \u0661)"],
)  # fmt: skip
def test_what_is_no_relation(text: str) -> None:
    with pytest.raises(ValueError, match="is not a dependency"):
        relations(text)


@pytest.mark.parametrize(
    "paragraph",
    ["", "Package: a", "Version: 1", "Package: a\nVersion: \nArchitecture: amd64", "Package: a\nVersion: 1",
     "Package: a\nVersion: 1\nArchitecture: i386", "Package: ../a\nVersion: 1\nArchitecture: amd64", "nonsense",
     "Package: a\nVersion: x\nArchitecture: amd64", ": a\n: b"],
)  # fmt: skip
def test_what_is_no_package_of_ours(paragraph: str) -> None:
    assert read(paragraph, "cuda") is None


PIECES = [
    "Package: ", "Version: ", "Depends: ", "Provides: ", "Conflicts: ", "Architecture: amd64", "\n", "\n\n", " ", "a",
    "b", "1", "(>= 1)", "(= 1-1)", "|", ",", ":any", "~", "\x00", "é", "(", "[", "<", "\r\n", "\t.", "=",
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=60).map("".join))
def test_whatever_a_list_holds_there_is_no_traceback(text: str) -> None:
    index = available(f"Package: a\nVersion: 1\nArchitecture: amd64\nDepends: b\n\n{text}\n\nPackage: b\nVersion: 1")
    try:
        assert "a" in close(index, "a=1")
    except GpuprovError as error:
        assert error.hint


versions = st.from_regex(r"(?:[0-9]:)?[0-9][0-9a-c.+~-]{0,6}(?:-[0-9a-c.+~]{1,4})?", fullmatch=True)


@settings(max_examples=10, deadline=None)
@given(st.lists(versions, min_size=2, max_size=8, unique=True))
def test_versions_are_ordered_as_dpkg_orders_them(some: list[str]) -> None:
    from provisioner.stack.package_index import is_version

    some = [v for v in some if is_version(v)]
    ordered = sorted(some, key=newest_first)
    for newer, older in itertools.pairwise(ordered):
        done = subprocess.run(["dpkg", "--compare-versions", newer, "ge", older], check=False, timeout=20)
        assert done.returncode == 0, (newer, older)


# ── every set of packages ───────────────────────────────────────────────────────────────────────────────────────────

NAMES = ("a", "b", "c", "d")
Small = dict[tuple[str, int], dict[str, list[list[tuple[str, str, int]]]]]
"""(name, version) → what it needs (groups) and what it is against: (name, operator, number)."""

relation = st.tuples(
    st.sampled_from((*NAMES, "virtual", "distro")), st.sampled_from(("", ">=", "<<", "=")), st.integers(1, 3)
)
package = st.fixed_dictionaries(
    {
        "needs": st.lists(st.lists(relation, min_size=1, max_size=2), max_size=2),
        "against": st.lists(st.lists(relation, min_size=1, max_size=1), max_size=1),
        "provides": st.lists(st.just([("virtual", "", 1)]), max_size=1),
    }
)
repository = st.dictionaries(st.tuples(st.sampled_from(NAMES), st.integers(1, 3)), package, min_size=2, max_size=9)


def written(group: list[tuple[str, str, int]]) -> str:
    return " | ".join(f"{n} ({o} {v})" if o else n for n, o, v in group)


def as_list(small: Small) -> str:
    fields = {"needs": "Depends", "against": "Conflicts", "provides": "Provides"}
    return "\n".join(
        stanza(name, str(v), **{fields[k]: ", ".join(map(written, groups)) for k, groups in row.items() if groups})
        for (name, v), row in small.items()
    )


def is_it(small: Small, name: str, version: int, relation: tuple[str, str, int]) -> bool:
    required, operator, number = relation
    if required == name:
        return {"": True, ">=": version >= number, "<<": version < number, "=": version == number}[operator]
    return required == "virtual" and not operator and bool(small[name, version]["provides"])


def holds_together(small: Small, chosen: Mapping[str, int]) -> bool:
    """The rules of Debian's policy, over a whole set."""
    known = {name for name, _ in small} | ({"virtual"} if any(row["provides"] for row in small.values()) else set())
    for name, version in chosen.items():
        row = small[name, version]
        for group in row["needs"]:
            distribution = any(r[0] not in known for r in group)
            if not distribution and not any(is_it(small, n, v, r) for n, v in chosen.items() for r in group):
                return False
        for (relation,) in row["against"]:
            if any(n != name and is_it(small, n, v, relation) for n, v in chosen.items()):
                return False
    return True


def every_set(small: Small, required: Mapping[str, int]) -> bool:
    """Whether some set of packages with those wanted holds together: all are tried."""
    choices = [
        [required[name]] if name in required else [None, *(v for n, v in small if n == name)] for name in NAMES
    ]  # fmt: skip
    sets = ({n: v for n, v in zip(NAMES, some, strict=True) if v is not None} for some in itertools.product(*choices))
    return any(holds_together(small, chosen) for chosen in sets)


@settings(max_examples=200, deadline=None)
@given(repository, st.data())
def test_a_closure_is_found_exactly_where_there_is_one(small: Small, data: st.DataObject) -> None:
    items = data.draw(st.lists(st.sampled_from(sorted(small)), min_size=1, max_size=2, unique_by=lambda item: item[0]))
    required = dict(items)
    try:
        version_by_name = {
            n: int(v) for n, v in close(available(as_list(small)), *(f"{n}={v}" for n, v in items)).items()
        }
    except GpuprovError as error:
        assert not every_set(small, required), str(error)
    else:
        assert holds_together(small, version_by_name)
        assert required.items() <= version_by_name.items()
