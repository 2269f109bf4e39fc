"""Whether each node is what the catalogue and the lock say: probe, parsers, checks, reports."""
