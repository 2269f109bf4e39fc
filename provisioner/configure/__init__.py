"""Bring nodes to what the lock says: drift.py finds those that are not, run.py runs the roles on them."""
