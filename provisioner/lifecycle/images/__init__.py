"""Golden images: built by the roles that configure live nodes, proven by the same checks, kept in channels.

manifest.py (what one build is), book.py (builds and channels on disk), bill.py, signing.py and vulnerabilities.py (what
lies beside them), disk/ (disks for machines of one's own), commands.py (what `gpuprov image` does). The user's side is
docs/guides/images.md.
"""
