"""The C header and library as they are installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import shmring

SOURCE = Path(__file__).with_name("sidecar.c")


def build(folder: Path) -> Path:
    library = Path(shmring.get_library())
    program = folder / "sidecar"
    subprocess.run(
        [
            *("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", str(SOURCE), "-o", str(program)),
            *("-I", shmring.get_include(), str(library), f"-Wl,-rpath,{library.parent}"),
        ],
        check=True,
    )
    return program


def test_a_c_sidecar_answers_python(tmp_path: Path) -> None:
    program = build(tmp_path)
    with (
        shmring.create("c-requests", slots=1024, temporary=True) as requests,
        shmring.create("c-answers", slots=1024, temporary=True) as answers,
        answers.consumer("python", start="earliest") as inbox,
        requests.producer() as out,
    ):
        words = [b"alpha", b"beta", b"", b"x" * 300]
        for word in words:
            out.push(word)
        out.push_end()
        process = subprocess.run(
            [program, requests.path, answers.path], capture_output=True, timeout=20, check=False
        )
        assert process.stderr == b""
        assert process.returncode == 0
        assert [inbox.pop(timeout=1) for _ in words] == [word.upper() for word in words]


def test_the_header_can_be_included_from_cpp(tmp_path: Path) -> None:
    source = tmp_path / "include.cpp"
    source.write_text("#include <shmring.h>\nint main() { return SHMRING_OK; }\n")
    subprocess.run(
        ["c++", "-Wall", "-Werror", "-fsyntax-only", "-I", shmring.get_include(), str(source)],
        check=True,
    )
