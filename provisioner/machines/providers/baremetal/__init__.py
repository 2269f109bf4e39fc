"""Machines that exist already: they can be rehearsed, and are not taken over yet."""
