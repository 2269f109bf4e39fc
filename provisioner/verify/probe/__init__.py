"""What runs on a node: modules of the standard library only, sent as one program (collect.py puts them together)."""
