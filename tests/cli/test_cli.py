"""The command line: cheap commands in this process, pairs and signals with real ones."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fixture_types import RunCommand, RunThread, Until
from programs import python

import shmring
from shmring.cli import app

PATIENCE = 120.0


def run(*arguments: object, input: bytes = b"") -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], input=input)


def good(*arguments: object, input: bytes = b"") -> str:
    result = run(*arguments, input=input)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(autouse=True)
def _unlinked(name: str) -> Iterator[None]:
    yield
    if name in shmring.rings():
        shmring.unlink(name)


def own_terminal() -> None:
    """Make the terminal at stdin this process's, so that Ctrl-C typed there reaches it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def numbered(count: int) -> bytes:
    """So many lines."""
    return b"".join(b"%d\n" % i for i in range(count))


def consumers(name: str) -> list[dict[str, Any]]:
    if name not in shmring.rings():
        return []
    try:
        with shmring.attach(name, read_only=True) as ring:
            return [s for s in ring.participants() if s["role"] == "consumer"]
    except shmring.NotARing:  # the ring is being made
        return []


# --- the pair -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["produce", "consume", "create"])
def test_no_ring_is_made_for_a_branch_that_cannot_be(name: str, command: str) -> None:
    for wrong in ("", "ü" * 24):
        refused = run(command, name, "--branch", wrong, input=b"lost\n")
        assert (refused.exit_code, "has 1 to 47 bytes" in refused.output) == (2, True)
    assert name not in shmring.rings()
    good("produce", name, "--branch", "ü" * 23 + "x", input=b"kept\n")
    assert good("consume", name, "--branch", "ü" * 23 + "x", "--until", "empty") == "kept\n"


def test_what_is_produced_first_waits_for_its_consumer(name: str) -> None:
    good("produce", name, "--end", input=b"hello\nworld\n")
    assert good("consume", name) == "hello\nworld\n"


def made(name: str, slots: str = "65,536") -> bytes:
    """Return the line that a consumer prints if it makes the ring."""
    removes = f"`shmring unlink {name}` removes it"
    return f'shmring: there was no ring "{name}": made one of {slots} slots; {removes}\n'.encode()


def test_a_consumer_that_comes_first_gets_all(name: str, command: RunCommand, until: Until) -> None:
    consumer = command("consume", name)
    until(lambda: consumers(name), "the consumer")
    good("produce", name, "--end", input=b"hello\n")
    assert consumer.communicate(timeout=PATIENCE) == (b"hello\n", made(name))
    assert consumer.returncode == 0


def test_more_than_the_ring_holds_passes_in_order(name: str, command: RunCommand) -> None:
    lines = numbered(20_000)
    producer = command("produce", name, "--slots", 1024, "--end")
    consumer = command("consume", name, "--slots", 1024)
    assert producer.stdin is not None
    producer.stdin.write(lines)
    producer.stdin.close()
    producer.stdin = None
    output, errors = consumer.communicate(timeout=PATIENCE)
    assert output == lines
    assert errors in (b"", made(name, "1,024")), "either may come first"
    assert producer.communicate(timeout=PATIENCE) == (b"", b"")


def test_a_line_is_passed_on_before_the_next_one_comes(name: str, command: RunCommand) -> None:
    producer, consumer = command("produce", name), command("consume", name)
    assert producer.stdin is not None
    assert consumer.stdout is not None
    for line in (b"one\n", b"two\n"):
        producer.stdin.write(line)
        producer.stdin.flush()
        assert consumer.stdout.readline() == line


# --- messages -----------------------------------------------------------------------------------


def test_a_line_longer_than_every_read_is_one_message(name: str) -> None:
    line = b"x" * 200_000
    good("produce", name, input=line + b"\nshort")
    assert good("consume", name, "--until", "empty") == line.decode() + "\nshort\n"


def test_json_tells_text_from_bytes(name: str) -> None:
    good("produce", name, input=b"text\n\xff\xfe\n")
    lines = good("consume", name, "--until", "empty", "--json").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row.get("message") for row in rows] == ["text", None]
    assert rows[1]["message_base64"] == "//4="
    assert [row["message_id"] for row in rows] == [0, 1]


def test_json_has_no_character_that_controls_a_terminal(name: str) -> None:
    marks = "\N{RIGHT-TO-LEFT OVERRIDE}\N{RIGHT-TO-LEFT ISOLATE}\x9b31m\x7f"
    with (
        shmring.create(name, slots=1024, temporary=True) as ring,
        ring.producer(f"out{marks}") as out,
        ring.consumer("keep", start="earliest", name=f"in{marks}"),
    ):
        out.push(f"text{marks}".encode())
        # CHANGE: edit this for a new command
        # Commands that print names or messages, which other programs have chosen.
        for arguments in (
            ["stat", name],
            ["table", name],
            ["check", name],
            ["top", name, "--times", "1"],
            ["consume", name, "--branch", "keep", "--until", "empty"],
        ):
            said = run(*arguments, "--json").stdout
            assert said.isascii(), arguments
            assert "\x7f" not in said, arguments
            assert "\\u202e" in said or arguments[0] == "check", arguments


def test_branches_see_all_and_limit_leaves_the_rest(name: str) -> None:
    good("create", name, "--branch", "billing", "--branch", "audit")
    good("produce", name, input=numbered(10))
    assert good("consume", name, "--branch", "billing", "--limit", 1) == "0\n"
    assert good("consume", name, "--branch", "billing", "--until", "empty", "--count") == "9\n"
    assert good("consume", name, "--branch", "audit", "--until", "empty", "--count") == "10\n"


def test_a_full_ring_is_given_up_on_in_time(name: str) -> None:
    good("create", name, "--slots", 1024, "--branch", "slow")
    result = run("produce", name, "--timeout", 0, input=numbered(2000))
    assert result.exit_code == 1
    assert name in result.stderr
    with shmring.attach(name) as ring:
        assert result.stderr.endswith(f"; pushed before: {ring.claimed:,} messages\n")
    again = run("produce", name, "--timeout", 0, input=numbered(2000))
    assert "nothing was published" in again.stderr
    assert "pushed before" not in again.stderr


def test_a_branch_that_drops_oldest_counts_what_it_lost(name: str) -> None:
    good("create", name, "--slots", 1024)
    with shmring.attach(name) as ring:
        ring.subscribe("fast", drop_oldest=True)
    good("produce", name, "--branch", "fast", input=numbered(3000))
    counts = json.loads(
        good("consume", name, "--branch", "fast", "--until", "empty", "--count", "--json")
    )
    assert counts["lost"] > 0
    assert counts["lost"] + counts["messages"] == 3000


# --- looking on ---------------------------------------------------------------------------------


def test_stat_ls_and_table_say_the_same_as_the_api(name: str) -> None:
    good("create", name, "--slots", 2048, "--mode", 640, "--branch", "b")
    good("produce", name, input=numbered(3))
    stat = json.loads(good("stat", name, "--json"))
    assert (stat["info"]["slots"], stat["info"]["mode"]) == (2048, 0o640)
    assert f"mode 640 of user {os.geteuid()}, made " in good("stat", name)
    assert (stat["claimed"], stat["used"], stat["branches"][0]["lag"]) == (3, 3, 3)
    assert name in good("ls")
    rows = [json.loads(line) for line in good("table", name, "--json").splitlines()]
    assert [row["reference_count"] for row in rows] == [1, 1, 1]
    assert json.loads(good("table", name, "--json", "--limit", 1)) == rows[-1]


def test_top_shows_what_passes_a_second(name: str) -> None:
    good("produce", name, input=numbered(5))
    shown = good("top", name, "--times", 1)
    assert "5 of 65,536 slots in use" in shown
    assert "0 slots a second" in shown
    assert "default" in shown
    looks = good("top", name, "--times", 2, "--interval", 0.05, "--json").splitlines()
    assert [json.loads(look)["slots_per_s"] for look in looks] == [0, 0]


def test_a_ring_whose_users_died_is_recovered_and_swept(
    name: str, command: RunCommand, until: Until
) -> None:
    consumer = command("consume", name)
    until(lambda: consumers(name), "the consumer")
    assert json.loads(good("gc", name, "--dry-run", "--json"))["would_sweep"] == []
    consumer.kill()
    consumer.wait(PATIENCE)
    assert json.loads(good("gc", name, "--dry-run", "--json"))["would_sweep"] == [name]
    assert good("gc", name) == f"{name}\n"
    assert name not in shmring.rings()


# --- ends ---------------------------------------------------------------------------------------


def test_rubbish_is_told_in_one_line_with_status_1(tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish"
    rubbish.write_bytes(os.urandom(100_000))
    result = run("stat", rubbish)
    assert result.exit_code == 1
    assert "not a shmring ring" in result.stderr
    assert result.stderr.count("\n") == 1


# CHANGE: edit this for a new command
@pytest.mark.parametrize("command", ["stat", "table", "top", "recover", "unlink"])
def test_a_ring_that_is_not_there_is_status_1(name: str, command: str) -> None:
    result = run(command, name)
    assert result.exit_code == 1
    assert f'no ring "{name}"' in result.stderr
    assert name not in shmring.rings()


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["stat"],
        ["create", "x", "--slots", "many"],
        ["create", "x", "--mode", "rw"],
        ["create", "x", "--mode", "1777"],
        ["create", "x", "--mode", "0"],
        ["consume", "x", "--start", "middle"],
        ["sidecar", "module"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_status_2_and_makes_nothing(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2
    assert "x" not in shmring.rings()


SIZES = "slots must be a power of two from 1024 to 2147483648, not"


@pytest.mark.parametrize("slots", ["0", "1000", "1025", "4G", "99999999999999999999"])
@pytest.mark.parametrize("command", ["create", "produce", "consume", "sidecar"])
def test_one_message_says_which_sizes_a_ring_can_have(name: str, command: str, slots: str) -> None:
    result = run(command, "json:dumps" if command == "sidecar" else name, "--slots", slots)
    number = str(4 << 30) if slots == "4G" else slots
    assert f"'--slots': {SIZES} {number}" in " ".join(result.stderr.split())
    assert result.exit_code == 2
    assert name not in shmring.rings()


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_smaller_ring_than_asked_for_is_refused_and_a_larger_one_is_taken(
    ring: shmring.Ring, name: str, command: str
) -> None:
    result = run(command, name, "--slots", "2048")
    assert result.exit_code == 1
    assert f'ring "{name}" exists already with 1024 slots, fewer than 2048' in result.stderr
    assert ring.branches() == []
    assert run(command, name, "--slots", "1024", *["--until", "empty"][: 2 * (command[0] == "c")])


def test_new_branch_beside_others_is_reported(ring: shmring.Ring, name: str) -> None:
    first = run("consume", name, "--branch", "billing", "--until", "empty")
    again = run("consume", name, "--branch", "billing", "--until", "empty")
    assert (first.stderr, again.stderr) == ("", "")
    other = run("consume", name, "--branch", "bill ing", "--until", "empty")
    assert (other.exit_code, other.stdout) == (0, "")
    assert other.stderr == (
        f'shmring: ring "{name}" had no branch "bill ing" beside "billing": making it; '
        f"`shmring drop-branch {name} 'bill ing'` removes it\n"
    )
    dashes = run("consume", name, "--branch", "-x", "--until", "empty")
    assert dashes.stderr.endswith(f"`shmring drop-branch {name} -- -x` removes it\n")
    assert run("drop-branch", name, "--", "-x").exit_code == 0


def test_branch_that_is_not_there_is_answered_with_those_that_are(
    ring: shmring.Ring, name: str
) -> None:
    none = run("drop-branch", name, "nosuch")
    assert none.stderr == f'shmring: ring "{name}" has no branch "nosuch"; its branches: none\n'
    for number in range(64):
        ring.subscribe(f"branch number {number}")
    many = run("drop-branch", name, "nosuch")
    assert (none.exit_code, many.exit_code) == (1, 1)
    assert 'its branches: "branch number 0", "branch number 1", ' in many.stderr
    assert many.stderr.endswith('", ...\n')


def test_create_with_exist_ok_leaves_a_ring_that_is_there(ring: shmring.Ring, name: str) -> None:
    assert run("create", name, "--slots", "2048").exit_code == 1
    found = run("create", name, "--slots", "2048", "--exist-ok", "--json")
    assert found.exit_code == 0
    assert json.loads(found.stdout)["uuid"] == ring.info.uuid


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_waiting_consumer_with_what_it_had_written(
    name: str,
    number: signal.Signals,
    command: RunCommand,
    until: Until,
) -> None:
    consumer = command("consume", name)
    until(lambda: consumers(name), "the consumer")
    good("produce", name, input=numbered(3))
    until(lambda: consumers(name)[0]["messages"] == 3, "the messages' arrival")
    consumer.send_signal(number)
    assert consumer.communicate(timeout=PATIENCE) == (numbered(3), made(name))
    assert consumer.returncode == 128 + number
    assert consumers(name) == []


def test_ctrl_c_on_the_terminal_comes_between_two_messages(
    name: str, command: RunCommand, until: Until, thread: RunThread
) -> None:
    """Each one has been printed, or is the next consumer's."""
    shmring.create(name).close()
    terminal, stdin = pty.openpty()
    consumer = command(
        "consume", name, stdin=stdin, start_new_session=True, preexec_fn=own_terminal
    )
    os.close(stdin)
    until(lambda: consumers(name), "the consumer")
    over = threading.Event()
    with shmring.attach(name) as ring, ring.producer() as out:

        def feed() -> int:
            count = 0
            while not over.is_set():
                try:
                    out.push(b"%d" % count, timeout=0.01)
                    count += 1
                except shmring.Full:
                    pass
            return count

        feeding = thread(feed)
        assert consumer.stdout is not None
        first = [consumer.stdout.readline() for _ in range(10)]
        os.write(terminal, b"\x03")
        rest = consumer.stdout.read()
        _, errors = consumer.communicate(timeout=PATIENCE)
        over.set()
        count = feeding.outcome()
        assert (consumer.returncode, errors) == (128 + signal.SIGINT, b"")
        assert consumers(name) == []
        printed = b"".join([*first, rest]).splitlines()
        left = good("consume", name, "--until", "empty").encode().splitlines()
        assert printed + left == [b"%d" % i for i in range(count)]
    os.close(terminal)


def test_a_reader_that_leaves_the_pipe_ends_it_quietly(
    name: str, command: RunCommand, until: Until
) -> None:
    consumer = command("consume", name, "--until", "never")
    until(lambda: consumers(name), "the consumer")
    assert consumer.stdout is not None
    consumer.stdout.close()
    consumer.stdout = None
    good("produce", name, input=b"nobody reads this\n")
    assert consumer.communicate(timeout=PATIENCE)[1] == made(name)
    assert consumer.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize("timeout", [0.0, 0.01])
def test_nothing_in_time_is_status_1(name: str, timeout: float) -> None:
    good("create", name)
    result = run("consume", name, "--timeout", timeout)
    assert (result.exit_code, result.stderr) == (
        1,
        f'shmring: branch "default": no message within {timeout} s: no producer is attached\n',
    )


def test_starting_the_command_line_imports_nothing_heavy() -> None:
    code = (
        "import sys, shmring.cli; "
        "print([m for m in ('pyarrow', 'numpy', 'rich', 'pyspark') if m in sys.modules])"
    )
    assert python(code, check=True).stdout == "[]\n"
