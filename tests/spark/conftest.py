"""A session in a zone where wrong instants are seen, and what tests do with any session."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def spark(start_spark):
    return start_spark("local[2]", **{"spark.sql.session.timeZone": "Europe/Berlin"})


@pytest.fixture
def set_option(spark):
    """Sets an option of the session for the length of the test."""
    before: dict[str, str | None] = {}

    def set_to(option, value):
        before.setdefault(option, spark.conf.get(option, None))
        spark.conf.set(option, value)

    yield set_to
    for option, value in before.items():
        spark.conf.unset(option) if value is None else spark.conf.set(option, value)


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.long)], ids=["", "live"])
def live(request):
    """Whether Spark runs a case itself although its own results are recorded."""
    return request.param


@pytest.fixture
def start_job(spark, name, thread):
    """Collects a frame beside the test; what it gives cancels that job, and waits for its end."""

    def start(frame):
        def run():
            spark.sparkContext.setJobGroup(name, "to be cancelled", interruptOnCancel=True)
            frame.collect()

        job = thread(run)

        def cancel():
            spark.sparkContext.cancelJobGroup(name)
            with pytest.raises(Exception, match=r"(?i)cancel"):
                job.outcome()

        return cancel

    return start
