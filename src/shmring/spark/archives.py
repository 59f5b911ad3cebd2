"""Bytecode for the modules of Spark's archives, taken from an installed copy of the same source.

Spark puts the archives of pyspark and py4j first on the path of its Python processes. The archives
hold no bytecode, and Python's importer of archives compiles each module twice: when it is asked for
the module's file name, and when it is asked for the code. This takes 0.9 s of CPU in each process.
Usually the same files are also installed, for example by pip, with their bytecode beside them.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.abc import SourceLoader
from importlib.util import cache_from_source
from pathlib import Path
from types import CodeType
from zipimport import zipimporter


class _Installed(SourceLoader):
    """Loads a module of an archive from the bytecode of an installed file with the same source."""

    def __init__(self, archived: str, installed: Path) -> None:
        self._archived, self._installed = archived, installed

    def get_filename(self, fullname: str) -> str:
        """Return the path in the archive: tracebacks show this path."""
        del fullname
        return self._archived

    def path_stats(self, path: str) -> dict[str, float]:
        """Return the installed file's time and size.

        Python uses the file's bytecode only if the bytecode has recorded the same time and size.
        """
        del path
        stat = self._installed.stat()
        return {"mtime": stat.st_mtime, "size": stat.st_size}

    def get_data(self, path: str) -> bytes:
        """Read the source if `path` is in the archive, otherwise the installed bytecode."""
        if path == self._archived:
            return self._installed.read_bytes()
        return Path(cache_from_source(self._installed)).read_bytes()


class _Archive(zipimporter):
    """Imports an archive's modules from installed bytecode.

    Both get_filename() and get_code() are replaced, because the base class compiles a module even
    to return its file name.
    """

    def get_filename(self, fullname: str) -> str:
        loader = _installed(self, fullname)
        return loader.get_filename(fullname) if loader else super().get_filename(fullname)

    def get_code(self, fullname: str) -> CodeType:
        loader = _installed(self, fullname)
        return (loader and loader.get_code(fullname)) or super().get_code(fullname)


@cache
def _installed(archive: _Archive, fullname: str) -> _Installed | None:
    """Return a loader for an installed file with the archived module's name and source, or None."""
    name = archive.prefix + fullname.rpartition(".")[2]
    inside = f"{name}/__init__.py" if archive.is_package(fullname) else f"{name}.py"
    archived = f"{archive.archive}/{inside}"
    for installed in (Path(entry, inside) for entry in sys.path):
        with suppress(OSError):
            if installed.read_bytes() == archive.get_data(archived):
                return _Installed(archived, installed)
    return None


@contextmanager
def installed_bytecode() -> Generator[None]:
    """Let imports inside the `with` block use installed bytecode for modules of archives."""
    sys.path_hooks.insert(0, _Archive)
    _forget_archives()
    try:
        yield
    finally:
        sys.path_hooks.remove(_Archive)
        _forget_archives()


def _forget_archives() -> None:
    for entry, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter):
            del sys.path_importer_cache[entry]
