"""`gpuprov`, and `python -m provisioner`.

Ctrl-C while the rest is imported ends the process as the shell expects it, without a traceback of an import: until
`run` can catch it, it is left to the kernel.
"""

import gc
import signal


def main() -> None:
    """Runs the command line and exits."""
    gc.set_threshold(100_000)  # most of what a command makes stays to its end: a tenth of its time went into looking
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where it is ignored (nohup, a job of sh)
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from provisioner.cli import main as cli

    cli.main(interruptible=ours)


if __name__ == "__main__":
    main()
