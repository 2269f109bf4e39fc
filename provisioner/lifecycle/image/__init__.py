"""Golden images: built, proven, published, night after night (docs/guides/images.md)."""
