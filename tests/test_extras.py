"""Use with the required packages alone, and errors that name a missing optional package."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest
from programs import python

import shmring

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
# Program that hides the optional packages, as if they were not installed.
WITHOUT = (
    "import sys\n"
    "for name in ('pyarrow', 'pandas', 'pyspark', 'sqlalchemy', 'prometheus_client'):\n"
    "    sys.modules[name] = None\n"
)


def run(code: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return python(WITHOUT + code, *arguments, input=stdin)


def shell(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    code = "from shmring.cli import main; sys.exit(main())"
    return run(code, *arguments, stdin=stdin)


def test_required_packages_are_few() -> None:
    names = {requirement.split(">=")[0] for requirement in PROJECT["dependencies"]}
    assert names == {"posix_ipc", "numpy", "click", "rich"}


def test_rings_are_removed_without_posix_ipc_too(name: str) -> None:
    code = """
sys.modules["posix_ipc"] = None
import shmring
shmring.create(sys.argv[1], slots=1024).close()
shmring.unlink(sys.argv[1])
print(sys.argv[1] in shmring.rings())
shmring.create(sys.argv[1], slots=1024, temporary=True).close()
print(sys.argv[1] in shmring.rings())
"""
    said = run(code, name)
    assert (said.returncode, said.stdout, said.stderr) == (0, "False\nFalse\n", "")


def test_jobs_that_send_nothing_to_sidecars_need_no_pyarrow() -> None:
    said = run("import shmring.spark; print(shmring.spark.jar_path.__name__)")
    assert (said.returncode, said.stdout, said.stderr) == (0, "jar_path\n", "")


def test_bytes_need_no_extra(name: str, tmp_path: Path) -> None:
    code = """
import shmring
name, folder = sys.argv[1:]
with shmring.create(name, slots=1024, temporary=True) as ring, ring.journal(folder):
    with ring.producer() as out, ring.consumer("b") as inp:
        out.push_many([b"one", b"two"], durable=True)
        out.push(b"x" * 1000, durable=True)
        out.push_end()
        with inp.lease_many(2) as batch:
            assert batch.array.shape == (2, 300)
        assert inp.pop() == b"x" * 1000
    assert ring.schema is None
    assert ring.stats()["slots"] == 1024
assert [bytes(m.data)[:3] for m in shmring.durable.replay(folder)][:2] == [b"one", b"two"]
queue = shmring.durable.PersistentQueue(folder + ".queue")
queue.close()
"""
    said = run(code, name, str(tmp_path / "journal"))
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


def test_the_command_line_needs_no_extra(name: str) -> None:
    try:
        assert shell("produce", name, "--end", "--slots", "1024", stdin="a\nb\n").returncode == 0
        assert shell("stat", name).returncode == 0
        assert shell("table", name).returncode == 0
        said = shell("consume", name)
        assert (said.returncode, said.stdout, said.stderr) == (0, "a\nb\n", "")
    finally:
        shmring.unlink(name)


def test_metrics_say_what_they_need() -> None:
    said = shell("exporter")
    assert said.returncode == 1
    assert said.stderr == (
        "shmring: the exporter needs prometheus_client, which is not installed here: "
        "pip install 'shmring[prometheus]'\n"
    )


@pytest.mark.parametrize(
    "use",
    [
        "ring.arrow_writer()",
        'ring.arrow_reader("b")',
        "ring.table()",
        "shmring.arrow",
        'shmring.sidecar("s")',
        'shmring.SidecarClient("s")',
    ],
)
def test_what_needs_pyarrow_says_how_to_get_it(use: str, name: str) -> None:
    code = f"""
import shmring
with shmring.create(sys.argv[1], slots=1024, temporary=True) as ring:
    try:
        {use}
    except shmring.MissingExtra as error:
        print(error)
"""
    said = run(code, name)
    assert said.stderr == ""
    assert "needs pyarrow, which is not installed here: pip install 'shmring[arrow]'" in said.stdout


def test_the_command_line_says_it_in_one_line(name: str) -> None:
    import pyarrow as pa

    batch = pa.record_batch({"x": [1]})
    with (
        shmring.create(name, slots=1024, schema=batch.schema, temporary=True) as ring,
        ring.arrow_writer() as out,
    ):
        ring.subscribe("default")
        out.write(batch)
        said = shell("consume", name, "--until", "empty")
    assert said.returncode == 1
    assert said.stderr == (
        "shmring: a record batch needs pyarrow, which is not installed here: "
        "pip install 'shmring[arrow]'\n"
    )


def test_a_ring_with_a_schema_is_used_as_bytes_without_pyarrow(name: str) -> None:
    import pyarrow as pa

    code = """
import shmring
with shmring.attach(sys.argv[1]) as ring, ring.consumer("b") as inp:
    print(len(inp.pop(timeout=60)), len(ring.schema_bytes) > 0)
    try:
        ring.schema
    except shmring.MissingExtra as error:
        print(error)
"""
    with shmring.create(name, slots=1024, schema=pa.schema({"x": pa.int64()}), temporary=True) as r:
        with r.producer() as out:
            out.push(b"1234")
        said = run(code, name)
    assert said.stdout.splitlines()[0] == "4 True"
    assert "an Arrow schema needs pyarrow" in said.stdout


def test_messages_that_are_no_batches_are_shown_without_pyarrow(name: str) -> None:
    with shmring.create(name, slots=1024, temporary=True) as ring, ring.producer() as out:
        ring.subscribe("b", start="earliest")
        out.push(b"bytes")
        out.push(b"of a kind of its own", kind=16)
        said = shell("consume", name, "--branch", "b", "--until", "empty")
    assert (said.returncode, said.stderr) == (0, "")
    assert "of a kind of its own" in said.stdout


def test_configure_names_the_extra_that_it_needs() -> None:
    said = run("import shmring.spark; shmring.spark.configure(None)")
    assert "MissingExtra: a Spark session needs pyspark" in said.stderr
    assert "pip install 'shmring[spark]'" in said.stderr


def test_a_subinterpreter_is_told_that_shmring_is_for_the_main_one() -> None:
    code = """
import sys

class Finder:  # as a subinterpreter of Python 3.12 and later answers
    def find_spec(self, name, path=None, target=None):
        if name == "shmring._shmring":
            raise ImportError(f"module {name} does not support loading in subinterpreters")

sys.meta_path.insert(0, Finder())
import shmring
"""
    assert "shmring works in the main interpreter of a process only" in python(code).stderr
