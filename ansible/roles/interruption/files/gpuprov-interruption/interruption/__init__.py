"""What the cloud announces on a node, and what is done then. Standard library only, Python 3.8 or newer."""
