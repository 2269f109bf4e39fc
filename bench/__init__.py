"""The promises of gpuprov as ratios against named rivals, measured in one run: `python -m bench`."""
