"""What a node's own distribution has beside the image: the kernel's headers and a compiler, which DKMS wants, perftest.

A folder of packages without content, which apt reads as a repository. A vendor's minimal image brings none of them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

from provisioner.sandbox.deb import Deb, File
from provisioner.sandbox.package_files import fact, placeholder, program

FOLDER = "usr/share/gpuprov-sandbox/archive"
PERFTEST = "4.5+0.17-1simulated1"
"""Above Debian 12's, so that apt takes this one also where nodes ask Debian's own mirror."""
TOOLS = {"gcc": "4:12.2.0-3", "make": "4.3-4.1", "libc6-dev": "2.36-9+deb12u13"}


def archive(tools: Mapping[str, str] = TOOLS) -> dict[str, File]:
    """The packages with their index, and the source that apt reads. `tools`: package → version; none where nodes ask
    Debian's own mirror for them."""
    release = os.uname().release
    headers = {
        **placeholder(f"usr/src/linux-headers-{release}/include/generated/autoconf.h"),
        f"usr/lib/modules/{release}/build": File(link=f"/usr/src/linux-headers-{release}"),
    }
    debs = [Deb(f"linux-headers-{release}", "1", "all", f"Headers of kernel {release}", headers)]
    debs += [Deb(name, version, "all", name, fact(f"tool-{name}", version=version)) for name, version in tools.items()]
    measured_with = {"usr/bin/ib_write_bw": program("ib_write_bw", PERFTEST)}
    debs.append(Deb("perftest", PERFTEST, "all", "InfiniBand verbs performance tests", measured_with))
    files: dict[str, File] = {}
    paragraphs = []
    for deb in debs:
        built = deb.build()
        files[f"{FOLDER}/{deb.filename}"] = File(built)
        index = f"Filename: ./{deb.filename}\nSize: {len(built)}\nSHA256: {hashlib.sha256(built).hexdigest()}\n"
        head, description = deb.control().split("Description: ", 1)
        paragraphs.append(f"{head}{index}Description: {description}")
    source = f"Types: deb\nURIs: file:/{FOLDER}\nSuites: ./\nTrusted: yes\n"
    return files | {
        f"{FOLDER}/Packages": File("\n".join(paragraphs).encode()),
        "etc/apt/sources.list.d/distribution.sources": File(source.encode()),
    }
