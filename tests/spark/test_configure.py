"""configure(): what it sets, and that a job of one file brings its sidecars along."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import zipfile
from contextlib import suppress
from pathlib import Path

import pyspark
import pytest
from programs import ended
from pyspark import SparkContext
from pyspark.sql import SparkSession

import shmring
from shmring.errors import ShmringError
from shmring.sidecars.wire import request_ring_name
from shmring.spark import configure, jar_path

PLUGIN = "io.shmring.spark.ShmringPlugin"
SWITCH = "spark.shmring.functions"
COLLECT = "spark.shmring.driver"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The path of a module that can be imported here."""
    (tmp_path / "configured_scorer.py").write_text("def score(batch): return batch\n")
    monkeypatch.syspath_prepend(tmp_path)
    return str(tmp_path / "configured_scorer.py")


@pytest.fixture
def configured(monkeypatch):
    """Return a function that runs configure() on a builder's options, without a JVM yet."""
    monkeypatch.setattr(SparkContext, "_jvm", None)  # an earlier test has other settings

    def options(given=None, **wanted):
        builder = SparkSession.Builder()
        for key, value in (given or {}).items():
            builder.config(key, value)
        return configure(builder, **wanted)._options

    return options


def test_jar_and_switch_are_all_that_a_session_without_sidecars_gets(configured):
    assert configured() == {"spark.jars": jar_path(), SWITCH: "on", COLLECT: "on"}
    alone = {"spark.jars": jar_path(), SWITCH: "off", COLLECT: "on"}
    assert configured(functions=False) == alone
    assert configured(driver=False)[COLLECT] == "off"
    assert configured({COLLECT: "off"})[COLLECT] == "off"
    assert configured({COLLECT: "off"}, driver=True)[COLLECT] == "on"
    assert configured({SWITCH: "off"})[SWITCH] == "off"
    assert configured({SWITCH: "off"}, functions=True)[SWITCH] == "on"
    assert configured({"spark.jars": "a.jar"})["spark.jars"] == f"{jar_path()},a.jar"
    # A session that ran before in this process has left the jar in its settings.
    assert configured({"spark.jars": f"file://{jar_path()}"})["spark.jars"] == jar_path()


def test_workers_of_a_local_session_are_of_the_drivers_python(configured, monkeypatch):
    monkeypatch.delenv("PYSPARK_PYTHON")
    configured({"spark.master": "yarn"})
    configured({"spark.master": "local", "spark.pyspark.python": "/there/python"})
    configured({"spark.master": "local"}, functions=False)
    assert "PYSPARK_PYTHON" not in os.environ
    configured({"spark.master": "local[2]"})
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/there/python")
    configured({"spark.master": "local[2]"})
    assert os.environ["PYSPARK_PYTHON"] == "/there/python"


# CHANGE: edit this for a new option of a sidecar
def test_one_line_sets_plugin_jar_options_and_brings_the_module(configured, module):
    sidecars = {"a": "configured_scorer:score", "b": "configured_scorer:other"}
    options = configured(
        sidecars=sidecars,
        workers=2,
        slots=4096,
        timeout=60,
        max_batch_rows=512,
        max_wait_ms=2.5,
        shared=True,
    )
    expected = {
        "spark.jars": jar_path(),
        "spark.plugins": PLUGIN,
        "spark.files": module,
        SWITCH: "on",
        COLLECT: "on",
    }
    for name, function in sidecars.items():
        of_sidecar = {"function": function, "workers": "2", "slots": "4096", "timeout": "60"}
        batching = {"maxBatchRows": "512", "maxWaitMs": "2.5"}
        for key, value in {**of_sidecar, **batching, "shared": "true"}.items():
            expected[f"spark.shmring.sidecar.{name}.{key}"] = value
    assert options == expected


def test_what_the_builder_has_stays_and_nothing_comes_twice(configured, module):
    given = {"spark.plugins": "com.other.Plugin", "spark.files": f"/other/file,{module}"}
    options = configured(given, sidecars={"a": "configured_scorer:score"})
    assert options["spark.plugins"] == f"com.other.Plugin,{PLUGIN}"
    assert options["spark.files"] == f"/other/file,{module}"
    again = configured(options, sidecars={"b": "configured_scorer:score"}, workers=3)
    assert again.items() >= options.items()
    assert again["spark.shmring.sidecar.b.workers"] == "3"


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A process with this spark-defaults.conf."""

    def outside(*lines):
        (tmp_path / "spark-defaults.conf").write_text("\n".join(lines))
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
        monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)

    return outside


def test_what_spark_defaults_and_submit_arguments_have_stays(
    configured, module, outside, monkeypatch
):
    outside(
        "# of the cluster",
        "spark.jars=  d.jar",
        "spark.plugins  com.other.Plugin",
        "spark.files:e",
        "spark.shmring.python /there/python",
        "spark.master local[2]",
    )
    monkeypatch.delenv("PYSPARK_PYTHON")
    sidecars = {"a": "configured_scorer:score"}
    options = configured(sidecars=sidecars)
    assert options["spark.jars"] == f"{jar_path()},d.jar"
    assert options["spark.plugins"] == f"com.other.Plugin,{PLUGIN}"
    assert options["spark.files"] == f"e,{module}"
    assert "spark.shmring.python" not in options
    assert configured({"spark.jars": "b.jar"})["spark.jars"] == f"{jar_path()},b.jar"
    arguments = "--jars s.jar --conf spark.plugins=com.third.Plugin --name x pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    options = configured(sidecars=sidecars)
    assert options["spark.jars"] == f"{jar_path()},s.jar"
    assert options["spark.plugins"] == f"com.third.Plugin,{PLUGIN}"


SUBMITTED = """
from pyspark.sql import SparkSession
import shmring.spark

print(shmring.spark.configure(SparkSession.builder)._options["spark.jars"])
"""


@pytest.mark.spark
@pytest.mark.long
def test_what_spark_submit_was_given_stays(tmp_path):
    (tmp_path / "job.py").write_text(SUBMITTED)
    (tmp_path / "a.jar").write_bytes(b"PK\5\6" + bytes(18))
    submit = Path(pyspark.__file__).parent / "bin/spark-submit"
    done = ended(submit, "--jars", tmp_path / "a.jar", tmp_path / "job.py", check=True)
    ours, other = done.stdout.strip().split(",")
    assert (ours, other.endswith("/a.jar")) == (jar_path(), True)


def test_packages_and_what_is_no_file_must_be_there_already(configured):
    for function in ("shmring.spark.functions:f", "shmring:f", "itertools:chain"):
        assert "spark.files" not in configured(sidecars={"a": function})


@pytest.mark.parametrize(
    ("sidecars", "text"),
    [
        ({"a": "no_such_module_at_all:f"}, "no module 'no_such_module_at_all' is found here"),
        ({"a": "functions.py:score"}, "names a file: a sidecar is named as .*, functions:score"),
        ({"a": "functions"}, "named as module:function, not 'functions'"),
        ({"a": "__main__:f"}, "must be in a module"),
        ({}, "workers are for sidecars"),
    ],
)
def test_what_cannot_be_served_is_refused(configured, sidecars, text):
    with pytest.raises(ValueError, match=text):
        configured(sidecars=sidecars, workers=2)


def test_python_of_a_local_session_is_the_drivers_unless_one_is_named(
    configured, module, monkeypatch
):
    python = "spark.shmring.python"
    sidecars = {"a": "configured_scorer:score"}
    assert python not in configured({"spark.master": "local[2]"}, sidecars=sidecars)
    monkeypatch.delenv("PYSPARK_PYTHON")
    assert python not in configured({"spark.master": "yarn"}, sidecars=sidecars)
    local = {"spark.master": "local[2]"}
    assert configured(local, sidecars=sidecars)[python] == sys.executable
    assert configured({**local, python: "p"}, sidecars=sidecars)[python] == "p"
    assert python not in configured({**local, "spark.pyspark.python": "p"}, sidecars=sidecars)


def test_session_of_a_connect_server_gets_the_switch_and_words(
    configured, module, capsys, monkeypatch
):
    remote = {"spark.remote": "sc://there"}
    assert configured(remote) == remote  # the server's setting, or that of the session
    assert "Spark Connect server" in capsys.readouterr().err
    assert configured(remote, functions=False) == {**remote, SWITCH: "off"}
    assert configured(remote, functions=True) == {**remote, SWITCH: "on"}
    with pytest.raises(ShmringError, match=r"--jars .*spark\.shmring\.sidecar\.NAME\.function"):
        configured(remote, sidecars={"a": "configured_scorer:score"})
    monkeypatch.setenv("SPARK_REMOTE", "sc://there")
    assert configured() == {}


@pytest.mark.parametrize(
    "options",
    [{"spark.remote": "local[2]"}, {"spark.master": "local[2]", "spark.api.mode": "Connect"}],
    ids=str,
)
def test_session_whose_server_ignores_plugins_is_refused_sidecars(configured, module, options):
    assert configured(options)[SWITCH] == "on"
    with pytest.raises(ShmringError, match=r"on 'local\[2\]'.* ignores spark\.plugins; use"):
        configured(options, sidecars={"a": "configured_scorer:score"})


DRIVER = """
    import sys
    from pyspark.sql import SparkSession
    import shmring.spark

    sys.path.insert(0, sys.argv[1])
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder.config("spark.submit.pyFiles", f"{sys.argv[1]}/zipped.zip")
    builder.config(f"spark.shmring.sidecar.{sys.argv[2]}-zipped.function", "only_there.deep:score")
    sidecars = {sys.argv[2]: "only_here:Scorer"}
    spark = shmring.spark.configure(builder, sidecars=sidecars, workers=1).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for direct in ("true", "false"):
        spark.conf.set("spark.shmring.direct", direct)
        scored = spark.range(1000).mapInArrow(
            shmring.spark.through(sys.argv[2], connect_timeout=0), "id long, score long"
        )
        print(scored.selectExpr("sum(score)").first()[0], flush=True)
    scored = spark.range(10).mapInArrow(
        shmring.spark.through(f"{sys.argv[2]}-zipped", connect_timeout=0), "id long"
    )
    print(scored.count(), flush=True)
    spark.stop()
"""


def seats_of(sidecar):
    with (
        suppress(shmring.RingNotFound),
        shmring.attach(request_ring_name(sidecar), read_only=True) as ring,
    ):
        return [participant["name"] for participant in ring.participants()]
    return []


@pytest.mark.long
@pytest.mark.spark
def test_tasks_wait_for_sidecars_of_modules_that_came_with_the_job(tmp_path, name, until, marker):
    """No client has patience: that the sidecar is being started is enough."""
    (tmp_path / "only_here.py").write_text(
        textwrap.dedent(
            """
            import pyarrow.compute as pc
            from functions import LoadedWithMarker

            class Scorer(LoadedWithMarker):
                def __call__(self, batch):
                    return batch.append_column("score", pc.multiply(batch["id"], 3))
            """
        )
    )
    with zipfile.ZipFile(tmp_path / "zipped.zip", "w") as packages:
        packages.writestr("only_there/__init__.py", "")
        packages.writestr("only_there/deep.py", "def score(batch): return batch\n")
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER), str(tmp_path), name],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        until(lambda: "client" in seats_of(name), "a task")
        marker.touch()
        output, _ = driver.communicate()
    finally:
        driver.kill()
        driver.wait()
    assert output.split() == ["1498500", "1498500", "10"]
    assert not [ring for ring in shmring.rings() if name in ring]
