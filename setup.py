"""The parts in C: the spawner's extension module and the fuse. Everything else is in pyproject.toml.

Both are optional: without a compiler the package is built all the same, children are made by os.fork and the fuse is
a Python program.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

STRICT = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]
EXTENSION = Extension(
    "node_manager.runtime._native",
    ["native/spawn.c"],
    depends=["native/fuse.c"],
    extra_compile_args=STRICT,
    # No lazy binding: between clone and exec the dynamic linker must not be called.
    extra_link_args=["-Wl,-z,now", "-pthread"],
    py_limited_api=True,
    optional=True,
)
FUSE = "xce-fuse"
PLACE = "node_manager/runtime"


class Build(build_ext):
    """Builds the fuse, a program of its own, beside the extension module."""

    def build_extension(self, ext: Extension) -> None:
        """Build the fuse, then the module: either may be there without the other."""
        try:
            self._build_fuse(self._folder)
        except (CompileError, LinkError) as error:
            self.warn(f"{FUSE} is not built, a Python program takes its place: {error}")
        super().build_extension(ext)

    def copy_extensions_to_source(self) -> None:
        """Put both into the source tree (`--inplace`)."""
        super().copy_extensions_to_source()
        built = self._folder / FUSE
        if built.exists():
            self.copy_file(str(built), str(Path(PLACE, FUSE)))

    def get_outputs(self) -> list[str]:
        """Name what was built, for whoever installs it."""
        fuse = self._folder / FUSE
        return [*super().get_outputs(), *([str(fuse)] if fuse.exists() else [])]

    @property
    def _folder(self) -> Path:
        return Path(self.build_lib, PLACE)

    def _build_fuse(self, folder: Path) -> None:
        objects = self.compiler.compile(["native/fuse.c"], output_dir=self.build_temp, extra_postargs=STRICT)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            # Static: nothing of it has to be found on a disk, or in a page cache, when the time comes.
            self.compiler.link_executable(objects, FUSE, output_dir=str(folder), extra_postargs=["-static", "-s"])
        except LinkError:
            self.compiler.link_executable(objects, FUSE, output_dir=str(folder), extra_postargs=["-Wl,-z,now", "-s"])


setup(
    ext_modules=[EXTENSION] if sys.platform == "linux" and not os.environ.get("XCE_WITHOUT_NATIVE") else [],
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
