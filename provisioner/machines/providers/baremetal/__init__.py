"""Machines that exist already: they can run in the sandbox, and are not taken over yet."""
