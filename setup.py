"""The parts in C, and what is installed beside the Python package. Everything else is in pyproject.toml.

The spawner's extension module and the fuse are optional: without a compiler the package is built all the same, children
are made by os.fork and the fuse is a Python program.

Units, manual pages and so on lie below the prefix as they would below /usr; the distributions' packages are made of
them (packaging/stage.sh).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from distutils.command.install_data import install_data
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
BESIDE = {
    "share/xce/roles": "roles/*.yaml",
    "share/xce/roles/reference": "roles/reference/*.yaml",
    "share/xce/examples": "packaging/examples/*",
    "share/xce/cloud-init": "packaging/cloud-init/*.yaml",
    "share/xce/logrotate": "packaging/logrotate/*",
    "share/xce/units": "units/root.conf",
    "lib/systemd/system": "units/xce*",
    "lib/xce-node-manager": "units/release-controllers",
}
"""Directory below the prefix -> files of the source tree."""
RENAMED = {"lib/sysusers.d": "units/sysusers.conf", "lib/tmpfiles.d": "units/tmpfiles.conf"}
"""Likewise; each is called xce-node-manager.conf there."""


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


class InstallBeside(install_data):
    """Installs what is beside the Python package; manual pages and completions are made of the very commands."""

    def run(self) -> None:
        """Make what is made, then install everything."""
        made = Path(self.get_finalized_command("build").build_temp, "beside")
        shutil.rmtree(made, ignore_errors=True)
        for place, file in RENAMED.items():
            (made / place).mkdir(parents=True)
            shutil.copy(file, made / place / "xce-node-manager.conf")
            self.data_files.append((place, [str(made / place / "xce-node-manager.conf")]))
        environment = os.environ | {"PYTHONPATH": str(Path.cwd()), "PYTHONDONTWRITEBYTECODE": "1"}
        for script in ("packaging/man/make_pages.py", "packaging/completion/make_completion.py"):
            output = made / Path(script).stem
            output.mkdir()
            subprocess.run([sys.executable, script, str(output)], check=True, env=environment)  # noqa: S603 - our own
            for file in sorted(output.iterdir()):
                section = file.suffix.removeprefix(".")
                place = f"share/man/man{section}" if section else "share/bash-completion/completions"
                self.data_files.append((place, [str(file)]))
        super().run()


setup(
    data_files=[(place, sorted(map(str, Path().glob(pattern)))) for place, pattern in BESIDE.items()],
    ext_modules=[EXTENSION] if sys.platform == "linux" and not os.environ.get("XCE_WITHOUT_NATIVE") else [],
    cmdclass={"build_ext": Build, "install_data": InstallBeside},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
