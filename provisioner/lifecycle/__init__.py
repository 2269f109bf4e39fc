"""The stages in their order: up.py makes and proves a fleet, down.py removes it, status.py says how it is."""
