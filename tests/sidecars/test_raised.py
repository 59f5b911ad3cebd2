"""A traceback of a user's function begins with a line of the user's."""

from __future__ import annotations

import pytest
from functions import numbers
from programs import cli

import shmring

HEADS = ("Traceback (", "Exception Group Traceback (", "+ Exception Group Traceback (")


def first_frames(text):
    """The file of the first frame of each traceback in a text."""
    lines = [line.strip().lstrip("| ") for line in text.splitlines()]
    return [lines[i + 1] for i, line in enumerate(lines) if line.startswith(HEADS)]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("fail_on_seven", "seven is not allowed"),
        ("fail_with_a_cause", "the cause"),
        ("fail_with_several", "the second"),
        ("fail_within_shmring", "RingNotFound"),
        ("fail_while_pyarrow_asks", "asked by pyarrow"),
        ("leave", "the function leaves"),
    ],
)
def test_job_sees_the_functions_frames_only(serve, client, function, text):
    joined = function in ("fail_with_several", "leave")
    serve(function, **({"max_batch_rows": 1000} if joined else {}))
    with client() as it, pytest.raises(shmring.SidecarError) as caught:
        list(it.map([numbers(5, 3)]))
    found = first_frames(str(caught.value))
    assert found
    assert all("tests/functions.py" in line for line in found), caught.value
    assert text in str(caught.value)
    if function == "fail_within_shmring":  # the lines below the user's lines stay
        assert "shmring/" in str(caught.value)


def test_error_of_shmrings_own_keeps_its_frames(serve, client):
    serve("nothing")
    with client() as it, pytest.raises(shmring.SidecarError) as caught:
        list(it.map([numbers(0)]))
    assert "sidecars/answers.py" in first_frames(str(caught.value))[0]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("class Model:\n    def __init__(self):\n        raise OSError('no model')", "no model"),
        ("import broken_below", "below"),
    ],
    ids=["constructor", "imported"],
)
def test_command_tells_the_users_frames_of_what_fails_to_load(tmp_path, name, source, said):
    (tmp_path / "broken.py").write_text(source)
    (tmp_path / "broken_below.py").write_text("raise OSError('below')")
    ended = cli("sidecar", "broken:Model", "--name", name, cwd=tmp_path)
    assert ended.returncode != 0
    assert said in ended.stderr
    assert all("broken.py" in line for line in first_frames(ended.stderr)), ended.stderr
