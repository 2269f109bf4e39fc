"""Code that Python compiles out of a zip, kept on the node.

Ansible sends each module as a zip with the library that it imports; Python keeps what it compiles of a file, but not of
a zip, and compiling is two fifths of what a module costs a processor. What is kept is found by a hash of its source,
and is the same that would be compiled anew. Imported by a .pth file of every Python of the node: no imports here but of
what Python has built in.
"""

import _imp
import marshal
import zipimport

FOLDER = "/var/cache/gpuprov-compiled/"
KEY = 0x67707570726F76
"""Of Python's own hash for sources (_imp.source_hash, SipHash): any number, the same each time."""
_compile = zipimport._compile_source  # type: ignore[attr-defined]


def compile_cached(path: str, source: bytes) -> object:
    """The code of a source, as zipimport compiles it."""
    name = FOLDER + _imp.source_hash(KEY, source).hex()
    try:
        with open(name, "rb") as stream:
            return marshal.loads(stream.read())  # noqa: S302 (root of a simulated node wrote it)
    except (OSError, ValueError, EOFError, TypeError):
        pass
    code = _compile(path, source)
    try:
        with open(name + ".new", "xb") as stream:
            stream.write(marshal.dumps(code))
        _rename(name + ".new", name)
    except OSError:
        pass
    return code


def _rename(old: str, new: str) -> None:
    import os

    os.rename(old, new)


zipimport._compile_source = compile_cached  # type: ignore[attr-defined]
