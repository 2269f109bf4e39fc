"""A fuzzer of what reads other people's files: real captures, edited by hypothesis, which minimises what breaks."""
