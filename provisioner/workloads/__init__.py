"""What a training needs: memory, time, machines and money, from published measurements. Pure functions: nothing here
asks a machine or a provider.

Published numbers are rows of data/*.yaml, each with its source. A result is a range, or unknown with the reason.
"""
