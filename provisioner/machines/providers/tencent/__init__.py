"""Tencent Cloud: its machines can run in the sandbox, and are not made yet."""
