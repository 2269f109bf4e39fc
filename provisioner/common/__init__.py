"""What every room uses: errors, events, files, texts."""
