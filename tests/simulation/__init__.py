"""The whole lifecycle over a simulated world: real code of gpuprov, deterministic faults, invariants after every step.

docs/design/simulation.md says what is real, what is simulated, and how to read a failing history.
"""
