"""A traceback of a user's function begins with a line of the user's."""

from __future__ import annotations

import subprocess
import sys

import pytest
from functions import numbers

import shmring
from shmring.sidecars.functions import find_function, instantiated
from shmring.sidecars.raised import raised

HEADS = ("Traceback (", "Exception Group Traceback (", "+ Exception Group Traceback (")


def load(target):
    return instantiated(find_function(target), target)


def told(function, *arguments):
    """What is told of an exception, without the frames of these helpers."""
    try:
        function(*arguments)
    except BaseException as error:
        below = error.__traceback__.tb_next
        return raised(error.with_traceback(below.tb_next if function is load else below))
    raise AssertionError("it raised nothing")


def first_frames(text):
    """The file of the first frame of each traceback in a text."""
    lines = [line.strip().lstrip("| ") for line in text.splitlines()]
    return [lines[i + 1] for i, line in enumerate(lines) if line.startswith(HEADS)]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("fail_on_seven", "seven is not allowed"),
        ("fail_half_way", "half way"),
        ("fail_with_a_cause", "the cause"),
        ("fail_with_several", "the second"),
        ("fail_within_shmring", "RingNotFound"),
        ("fail_while_pyarrow_asks", "asked by pyarrow"),
        ("recurse", "RecursionError"),
        ("leave", "the function leaves"),
    ],
)
def test_job_sees_the_functions_frames_only(serve, client, function, text):
    joined = function in ("fail_half_way", "fail_with_several", "leave")
    serve(function, **({"max_batch_rows": 1000} if joined else {}))
    with client() as it, pytest.raises(shmring.SidecarError) as caught:
        list(it.map([numbers(5, 3)]))
    found = first_frames(str(caught.value))
    assert found
    assert all("tests/functions.py" in line for line in found), caught.value
    assert text in str(caught.value)
    if function == "fail_within_shmring":  # what lies below the user's lines stays
        assert "shmring/" in str(caught.value)


def test_error_of_shmrings_own_keeps_its_frames(serve, client):
    serve("nothing")
    with client() as it, pytest.raises(shmring.SidecarError) as caught:
        list(it.map([numbers(0)]))
    assert "sidecars/answers.py" in first_frames(str(caught.value))[0]


@pytest.mark.parametrize(
    ("source", "first"),
    [
        ("1 / 0", "broken.py"),
        ("class Model:\n    def __init__(self):\n        1 / 0", "broken.py"),
        ("import broken_below", "broken.py"),
        ("def f(:", None),
    ],
    ids=["module", "constructor", "imported", "syntax"],
)
def test_what_fails_to_load_is_told_from_the_users_first_line(tmp_path, monkeypatch, source, first):
    (tmp_path / "broken.py").write_text(source)
    (tmp_path / "broken_below.py").write_text("raise OSError('below')")
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("broken", "broken_below"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    text = told(load, "broken:Model")
    found = first_frames(text)
    if first is None:
        assert found == []
        assert text.startswith('  File "')
        assert "SyntaxError" in text
    else:
        assert first in found[0]


def test_module_that_is_not_there_is_told_with_everything():
    assert "find_function" in told(find_function, "no_such_module_at_all:f")


def test_broken_text_of_an_exception_is_no_other_error():
    class Odd(Exception):
        def __str__(self):
            raise ValueError("no text")

    def fail():
        raise Odd

    assert "<exception str() failed>" in told(fail)


def test_exceptions_that_are_each_others_cause_end():
    def fail():
        first, second = ValueError("first"), ValueError("second")
        first.__cause__, second.__cause__ = second, first
        raise first

    assert "second" in told(fail)


def test_command_tells_the_users_frames_of_a_model_that_fails_to_load(tmp_path, name):
    (tmp_path / "broken.py").write_text(
        "class Model:\n    def __init__(self):\n        raise OSError('no model here')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "shmring", "sidecar", "broken:Model", "--name", name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode != 0
    assert "no model here" in ended.stderr
    assert all("broken.py" in line for line in first_frames(ended.stderr)), ended.stderr
