"""Golden images: built by the roles that configure live nodes, proven by the same checks, kept in channels.

recipe.py (a cluster.yaml with `image`), manifest.py (what one build is), book.py (builds and channels on disk).
"""
