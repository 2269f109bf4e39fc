"""A new machine under the name of a bad one."""
