"""What is said where a kernel does not take a module."""

from __future__ import annotations

import pytest

from tests.support.ansible_modules import shared

kernel = shared("gpuprov_kernel")


@pytest.mark.parametrize(
    ("modprobe_output", "enrol"),
    [
        # issue threads of lcp/mokutil and awesometic/realtek-r8126-dkms; the second is strerror(3) of ENOKEY
        ("modprobe: ERROR: could not insert 'nvidia': Key was rejected by service", True),
        ("modprobe: ERROR: could not insert 'nvidia': Required key not available", True),
        ("modprobe: ERROR: could not insert 'nvidia': No such device", False),
        ("", False),
    ],
)
def test_a_key_that_nobody_enrolled_is_told_with_the_way_out(modprobe_output: str, enrol: bool) -> None:
    message = kernel.unloaded(modprobe_output)
    assert ("mokutil --import /var/lib/dkms/mok.pub" in message, "dmesg" in message) == (enrol, not enrol)
    assert message.startswith(modprobe_output or "it said nothing")
