"""A machine's console shows whatever the machine likes: the host key in it is looked for once, whatever its size."""

from __future__ import annotations

import pytest

from provisioner.machines.providers.first_boot import BEGIN, END, host_key_of

KEY, OTHER = "ssh-ed25519 " + "A" * 68, "ssh-ed25519 " + "B" * 68


@pytest.mark.parametrize("piece", [BEGIN, f"{BEGIN}\n{KEY}\n", END, "ssh-ed25519 ", "-", "\n", "ssh-ed25519 AAAA\n"])
def test_a_console_of_four_megabytes_is_read_in_one_pass(piece: str) -> None:
    """The square of it is hours."""
    assert host_key_of(piece * (4_000_000 // len(piece))) is None


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"x{BEGIN}\r\n{KEY}\r\n{END}", KEY),
        (f"{BEGIN}{KEY}\n{END} boot {BEGIN}\n{OTHER}\n{END}", OTHER),
        (f"{BEGIN}{KEY}\n{END} boot {BEGIN}\n{OTHER}\n", KEY),
        (f"{BEGIN}{KEY}", None), (f"{KEY}{END}", None), (f"{END}{KEY}{BEGIN}", None), (f"{BEGIN}{END}{KEY}", None),
        (f"{BEGIN}\nssh-rsa {'A' * 300}\n{END}", None),
    ],
)  # fmt: skip
def test_the_key_of_the_last_boot_that_wrote_keys(text: str, key: str | None) -> None:
    assert host_key_of(text) == key
