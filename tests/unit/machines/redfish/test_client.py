"""A connection to a BMC: who it is, that it ends, and what is made of each way in which real ones fail."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.machines.redfish import accounts, inventory
from provisioner.machines.redfish.accounts import Account
from provisioner.machines.redfish.client import Bmc
from provisioner.machines.redfish.errors import BmcError
from provisioner.machines.redfish.side_by_side import each
from provisioner.machines.redfish.trust import Pins
from tests.support import bmc as fake

Start = Callable[..., fake.Bmc]


def connect(
    bmc: fake.Bmc, folder: Path, *, password: str = "", seconds: float = 20, log_lines: list[str] | None = None
) -> Bmc:
    account = Account(bmc.user, password or bmc.password)
    lines = log_lines if log_lines is not None else []
    return Bmc(
        "dgx01",
        "127.0.0.1",
        account,
        Pins(folder / "bmc_pins.json"),
        time.monotonic() + seconds,
        bmc.port,
        lines.append,
    )


def test_a_machine_is_read_and_no_session_stays(start: Start, tmp_path: Path) -> None:
    bmc = start("nvidia-dgx-h100")
    with connect(bmc, tmp_path) as connected_bmc:
        machine_facts = inventory.read(connected_bmc.tree())
    assert (machine_facts.model, len(machine_facts.gpus.read), bmc.opened, bmc.sessions) == ("DGXH100", 8, 1, {})
    assert bmc.changes == []


def test_a_session_is_closed_whatever_happens(start: Start, tmp_path: Path) -> None:
    bmc = start()
    with pytest.raises(KeyboardInterrupt), connect(bmc, tmp_path):
        raise KeyboardInterrupt
    assert (bmc.opened, bmc.sessions) == (1, {})
    slow_bmc = connect(bmc, tmp_path, seconds=1)
    with pytest.raises(BmcError, match="did not answer in time"), slow_bmc:
        slow_bmc.deadline = 0
        slow_bmc.get("/redfish/v1/Systems")
    assert (bmc.opened, bmc.sessions) == (2, {})


def test_the_certificate_is_pinned_at_first_contact_and_held_to(start: Start, tmp_path: Path) -> None:
    bmc, lines = start(), list[str]()
    for _ in range(2):
        with connect(bmc, tmp_path, log_lines=lines):
            pass
    assert len(lines) == 1 and "SHA256:" in lines[0]
    (tmp_path / "other").mkdir()
    with fake.serving(bmc, fake.certificate(tmp_path / "other")):
        opened, request_count = bmc.opened, bmc.asked
        with (
            pytest.raises(BmcError, match=r"its BMC shows the certificate SHA256:.* which is pinned") as refused,
            connect(bmc, tmp_path),
        ):
            pass
        assert refused.value.kind == "certificate"
        assert (bmc.opened, bmc.asked) == (opened, request_count), "something was sent to the stranger"


def test_a_certificate_that_changes_within_a_run_gets_no_password(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison is made on each connection, not only on the first."""
    bmc = start()
    monkeypatch.setattr(Pins, "meet", lambda *_: ("0" * 64, False))
    with pytest.raises(BmcError) as refused, connect(bmc, tmp_path):
        pass
    assert (refused.value.kind, bmc.asked) == ("certificate", 0)


def test_one_that_was_verified_must_stay_so(start: Start, tmp_path: Path) -> None:
    (tmp_path / "bmc_pins.json").write_text(json.dumps({"dgx01": "verified"}))
    with pytest.raises(BmcError, match="can't be verified any more"), connect(start(), tmp_path):
        pass


def test_a_wrong_password_is_said_and_not_tried_again(start: Start, tmp_path: Path) -> None:
    bmc = start()
    with (
        pytest.raises(BmcError, match="does not accept the user and password") as refused,
        connect(bmc, tmp_path, password="pa55"),
    ):
        pass
    assert refused.value.kind == "credentials"
    assert bmc.asked == 2, "root and one sign-in: more may lock the account"
    assert "pa55" not in str(refused.value) and bmc.password not in str(refused.value)


@pytest.mark.parametrize("fault", [{"full": True}, {"drops_session": 12}, {"busy": 2}, {"resets": 1}], ids=str)
def test_what_real_ones_do_is_survived(start: Start, tmp_path: Path, fault: dict[str, int]) -> None:
    bmc = start("dell-poweredge-r750-h100pcie")
    with connect(bmc, tmp_path) as connected_bmc:
        bmc.faults = fake.Faulty(**fault)
        assert len(inventory.read(connected_bmc.tree()).gpus.read) == 1
    assert bmc.sessions == {}


def test_full_of_sessions_goes_on_without_one(start: Start, tmp_path: Path) -> None:
    bmc = start(faults=fake.Faulty(full=True))
    with connect(bmc, tmp_path) as connected_bmc:
        assert inventory.read(connected_bmc.tree()).model == "PowerEdge R750"
    assert bmc.opened == 0


def test_503_to_the_end_is_told(start: Start, tmp_path: Path) -> None:
    bmc = start(faults=fake.Faulty(busy=99))
    with (
        pytest.raises(BmcError, match="Redfish service is not available now") as caught,
        connect(bmc, tmp_path, seconds=6),
    ):
        pass
    assert caught.value.kind == "busy"


@pytest.mark.parametrize(("port", "message"), [(1, "refused"), (9, "cannot be reached")])
def test_nobody_there(tmp_path: Path, port: int, message: str) -> None:
    absent_bmc = Bmc("dgx01", "127.0.0.1", Account("a", "b"), Pins(tmp_path / "p"), time.monotonic() + 3, port)
    with pytest.raises(BmcError, match=message) as caught, absent_bmc:
        pass
    assert caught.value.kind == "unreachable"


def test_a_slow_one_holds_nobody(start: Start, tmp_path: Path) -> None:
    slow, quick = start(faults=fake.Faulty(slow_s=30)), start()
    bmcs = {"slow": slow, "quick": quick}

    def work(name: str) -> str | None:
        with connect(bmcs[name], tmp_path / name, seconds=4) as connected_bmc:
            return inventory.read(connected_bmc.tree()).model

    for name in bmcs:
        (tmp_path / name).mkdir()
    begun = time.monotonic()
    outcomes = list(each(["slow", "quick"], work, 4))
    assert [(outcome.machine, outcome.value) for outcome in outcomes] == [("quick", "PowerEdge R750"), ("slow", None)]
    assert isinstance(outcomes[1].error, BmcError) and outcomes[1].error.kind == "slow"
    assert time.monotonic() - begun < 15


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 3}', "[" * 5000])
def test_damaged_pins_are_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "bmc_pins.json").write_text(text)
    with pytest.raises(BmcError, match="is damaged") as caught:
        Pins(tmp_path / "bmc_pins.json").load()
    assert caught.value.where == str(tmp_path / "bmc_pins.json")


def test_accounts_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAB_USER", "root")
    with pytest.raises(BmcError, match="LAB_PASSWORD is not set"):
        accounts.find("env:LAB", "dgx01", "bmc01", tmp_path)
    monkeypatch.setenv("LAB_PASSWORD", "s3cret")
    account = accounts.find("env:LAB", "dgx01", "bmc01", tmp_path)
    assert (account.user, account.password, "s3cret" in repr(account)) == ("root", "s3cret", False)


@pytest.mark.parametrize(("name", "user"), [("dgx01", "one"), ("dgx02", "two"), ("dgx03", "rest")])
def test_accounts_come_from_a_file_of_ones_own(tmp_path: Path, name: str, user: str) -> None:
    file = tmp_path / "bmc.yaml"
    file.write_text(
        "dgx01: {user: one, password: a}\nbmc-2: {user: two, password: b}\nall: {user: rest, password: c}\n"
    )
    file.chmod(0o640)
    with pytest.raises(BmcError, match="others may read"):
        accounts.find("file:bmc.yaml", name, "bmc-2" if name == "dgx02" else "x", tmp_path)
    file.chmod(0o600)
    assert accounts.find("file:bmc.yaml", name, "bmc-2" if name == "dgx02" else "x", tmp_path).user == user


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "all: x", "all: {user: a}", "all: {user: 3, password: b}", "all: {user: a, password: 's3cret", "\x00",
     "[" * 5000 + "s3cret"],
)  # fmt: skip
def test_a_file_of_accounts_that_is_none_is_told_without_its_text(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bmc.yaml"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(BmcError) as caught:
        accounts.find("file:bmc.yaml", "dgx01", "bmc", tmp_path)
    assert "s3cret" not in str(caught.value) and str(file) in str(caught.value)
    file.unlink()
    with pytest.raises(BmcError, match="cannot be read"):
        accounts.find("file:bmc.yaml", "dgx01", "bmc", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dgx1: {user: a, password: b}", "no line for dgx01, bmc or all"),
        ("dgx01: {user: a, pass: s3cret}", "the line dgx01 is read, and it has no password"),
        ("all: {user: a, password: 1234}", "the line all is read, and its password is no text: quote it"),
        ("all: admin:s3cret", "the line all is read, and it has no user"),
    ],
)
def test_what_a_file_of_accounts_lacks_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bmc.yaml"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(BmcError) as caught:
        accounts.find("file:bmc.yaml", "dgx01", "bmc", tmp_path)
    assert message in str(caught.value) and "s3cret" not in str(caught.value) and "1234" not in str(caught.value)


def test_one_that_wants_basic_authentication_first(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sushy-tools' emulator does: a session is made behind it."""
    monkeypatch.setattr(
        fake._Handler, "_sign_in", lambda self, *_: self._say(401, None, {"WWW-Authenticate": 'Basic realm="x"'})
    )
    with connect(start(), tmp_path) as connected_bmc:
        assert inventory.read(connected_bmc.tree()).model == "PowerEdge R750"
    (tmp_path / "again").mkdir()
    bmc = start()
    with pytest.raises(BmcError, match="does not accept the user"), connect(bmc, tmp_path / "again", password="pa55"):
        pass
    assert bmc.asked == 3
