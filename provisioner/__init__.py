"""gpuprov: one file turns into a GPU fleet that is proven to work."""

__version__ = "0.1.0"
