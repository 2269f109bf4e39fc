"""Golden images: built, proven, published, night after night (docs/images.md)."""
