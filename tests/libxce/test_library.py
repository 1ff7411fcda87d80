"""libxce: built as its users build it, its own tests plain, under sanitizers and valgrind, and its parser fuzzed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "libxce"
BOUND_S = 100.0

CAN_BUILD = shutil.which("make") is not None and shutil.which("cc") is not None and SOURCE.is_dir()
WHY_NOT = "the sources of libxce, make and a C compiler are needed"

pytestmark = pytest.mark.skipif(not CAN_BUILD, reason=WHY_NOT)


def run(*command: str | Path, cwd: Path = SOURCE, **environment: str) -> str:
    """Run a command that must succeed, and return what it printed."""
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", **environment}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=BOUND_S)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def make(target: str, build: Path, *variables: str) -> str:
    return run("make", "--no-print-directory", f"BUILD={build}", target, *variables)


def test_the_client_behaves_as_its_header_says(tmp_path: Path) -> None:
    """The vectors and every behaviour of the client hold in the library as it is shipped."""
    assert " 0 failures" in make("check-plain", tmp_path)


def test_the_client_is_clean_under_sanitizers(tmp_path: Path) -> None:
    """No test touches memory that is not its own, leaks, or does what C leaves undefined."""
    if not can_sanitize(tmp_path):
        pytest.skip("the compiler has no sanitizers")
    assert " 0 failures" in make("check-sanitize", tmp_path)


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is needed")
def test_the_client_is_clean_under_valgrind(tmp_path: Path) -> None:
    """No test reads what was never written, and nothing is left allocated."""
    assert " 0 failures" in make("check-valgrind", tmp_path)


def test_no_bytes_of_an_agent_do_harm(tmp_path: Path) -> None:
    """Mutated records, under sanitizers, are taken or change nothing; what is kept stays within its bounds.

    So it is with what an example is answered by etcd.
    """
    if not can_sanitize(tmp_path):
        pytest.skip("the compiler has no sanitizers")
    said = make("fuzz", tmp_path, "FUZZ_S=3")
    assert "records, seed 1" in said
    assert "questions, seed 1" in said


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("clang") is None, reason="clang is needed")
def test_no_bytes_found_by_coverage_do_harm(tmp_path: Path) -> None:
    """What a fuzzer finds that looks for new paths through the parser does no harm either."""
    make("libfuzzer", tmp_path, "FUZZ_S=30")


def can_sanitize(place: Path) -> bool:
    """Whether the compiler can make such a program."""
    program = place / "empty.c"
    program.write_text("int main(void) { return 0; }\n")
    command = ["cc", "-fsanitize=address,undefined", "-o", str(place / "empty"), str(program)]
    return subprocess.run(command, capture_output=True, check=False, timeout=BOUND_S).returncode == 0


def test_the_library_needs_the_c_library_alone_and_never_allocates_later(tmp_path: Path) -> None:
    """Everything that it calls is on this list: no thread, no signal, no wait, no allocation but the handle's."""
    make("all", tmp_path)
    calls = {line.split()[-1] for line in run("nm", "-u", tmp_path / "xce.o").splitlines()}
    allowed = {
        *("calloc", "free"),
        *("clock_gettime", "close", "connect", "getenv", "getpid", "recv", "send", "socket"),
        *("__errno_location", "memchr", "memcmp", "memcpy", "memmove", "memset", "snprintf", "strcmp", "strcpy"),
        *("strlen", "strnlen", "strrchr"),
        *("_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail", "__snprintf_chk", "__strcpy_chk", "__memcpy_chk"),
    }
    assert calls <= allowed
    text = (SOURCE / "xce.c").read_text()
    assert len(re.findall(r"\bcalloc\(", text)) == 1
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", tmp_path / "libxce.so"))
    assert needed == ["libc.so.6"]


def test_the_shared_library_exports_what_the_header_declares(tmp_path: Path) -> None:
    """No symbol more, each under a version, so that a later library can keep old programs working."""
    make("all", tmp_path)
    declared = set(re.findall(r"XCE_API [^;(]*?\b(xce_\w+)\(", (SOURCE / "xce.h").read_text()))
    exported = {line.split()[-1] for line in run("nm", "-D", "--defined-only", tmp_path / "libxce.so").splitlines()}
    assert {f"{name}@@XCE_1" for name in declared} | {"XCE_1"} == exported
    assert "[libxce.so.1]" in run("readelf", "-d", tmp_path / "libxce.so")


PROGRAM = """
#include <stdio.h>
#include <xce.h>
int main(void)
{
    xce_heartbeat *hb = xce_heartbeat_open("c", 1000, NULL);
    int done = xce_set_ready(hb, 1) == 0 && xce_heartbeat_poll(hb) == 0 && xce_heartbeat_next_ms(hb) == 60000;
    xce_heartbeat_close(hb);
    puts(done ? "works" : "fails");
    return !done;
}
"""


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="pkg-config is needed")
@pytest.mark.parametrize("language", ["c", "c++"])
def test_an_installed_library_is_found_and_linked(tmp_path: Path, language: str) -> None:
    """What `make install` makes below DESTDIR serves programs in C and C++, linked shared and static."""
    if language == "c++" and shutil.which("c++") is None:
        pytest.skip("a C++ compiler is needed")
    make("install", tmp_path / "build", f"DESTDIR={tmp_path}/root", "PREFIX=/usr", "LIBDIR=/usr/lib/xce")
    lib = tmp_path / "root/usr/lib/xce"
    flags = run(
        "pkg-config", "--cflags", "--libs", "libxce",
        PKG_CONFIG_PATH=str(lib / "pkgconfig"), PKG_CONFIG_SYSROOT_DIR=str(tmp_path / "root"),
    ).split()  # fmt: skip
    program = tmp_path / "program.c"
    program.write_text(PROGRAM)
    compiler = ["c++", "-x", "c++"] if language == "c++" else ["cc", "-std=c99", "-pedantic"]
    run(*compiler, "-Wall", "-Werror", "-o", tmp_path / "shared", program, "-x", "none", *flags)
    run(*compiler, "-o", tmp_path / "static", program, "-x", "none", f"-I{tmp_path}/root/usr/include", lib / "libxce.a")
    assert run(tmp_path / "shared", LD_LIBRARY_PATH=str(lib)) == "works\n"
    assert run(tmp_path / "static") == "works\n"


def test_the_source_can_be_vendored(tmp_path: Path) -> None:
    """xce.h and xce.c alone, copied into a program, compile as GNU C and as C11 with a program's own warnings."""
    for name in ("xce.h", "xce.c"):
        shutil.copy(SOURCE / name, tmp_path)
    for standard in ("c99", "c11", "gnu17"):
        run("cc", f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-c", "xce.c", cwd=tmp_path)
