"""What is said where a kernel does not take a module."""

from __future__ import annotations

import pytest

from tests.support.ansible_modules import shared

kernel = shared("gpuprov_kernel")


@pytest.mark.parametrize(
    ("said", "enrol"),
    [
        # issue threads of lcp/mokutil and awesometic/realtek-r8126-dkms; the second is strerror(3) of ENOKEY
        ("modprobe: ERROR: could not insert 'nvidia': Key was rejected by service", True),
        ("modprobe: ERROR: could not insert 'nvidia': Required key not available", True),
        ("modprobe: ERROR: could not insert 'nvidia': No such device", False),
        ("", False),
    ],
)
def test_a_key_that_nobody_enrolled_is_told_with_the_way_out(said: str, enrol: bool) -> None:
    told = kernel.unloaded(said)
    assert ("mokutil --import /var/lib/dkms/mok.pub" in told, "dmesg" in told) == (enrol, not enrol)
    assert told.startswith(said or "it said nothing")
