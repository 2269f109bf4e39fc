"""The commands: they parse, ask and print; what they do is in lifecycle/."""
