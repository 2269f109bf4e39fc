"""What people have on the desk when a node that gpuprov never made is ill: nvidia-bug-report.log.gz, a sosreport, an
export of the journal, a tar or folder of saved outputs, a session copied from a terminal. `read` makes a bundle of it.

    pieces.py      opens files and archives, within bounds and without writing anything
    sections.py    cuts a report into the outputs that it holds
    recognise.py   tells by content what each is
    journals.py    makes kernel logs of journals and syslogs, boot by boot
    machine.py     tells the machine type, where the outputs do
"""

from __future__ import annotations

from provisioner.verify.support_bundle.reading import Supplied, read

__all__ = ["Supplied", "read"]
