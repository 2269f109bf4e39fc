"""What runs on a node: modules of the standard library only, sent as one program (send.py puts them together)."""
