"""Tencent Cloud: its machines can be rehearsed, and are not made yet."""
