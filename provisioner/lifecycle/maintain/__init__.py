"""Patches, clean-up and reboots of a running fleet, in a window."""
