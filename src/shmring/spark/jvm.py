"""Finds or makes the jar with Spark's data source and plugin, and configures sessions with it.

A wheel that was built without Spark's jars, for example by pip in isolation, has the jar's sources
instead: then the jar is made here, once, against the installed pyspark.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import shmring
from shmring import __version__
from shmring.common.extras import need
from shmring.common.own_file import open_own
from shmring.errors import ShmringError
from shmring.sidecars.functions import parts_of
from shmring.sidecars.options import PluginOptions, checked, documented, settings_of
from shmring.sidecars.wire import check_sidecar_name
from shmring.spark.report import FUNCTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_PLUGIN = "io.shmring.spark.ShmringPlugin"
_DRIVER = "spark.shmring.driver"
_WORDS = {True: "on", False: "off"}
_OF_A_SERVER = (
    "this session is one of a Spark Connect server, which has the jar and the sidecars: start the "
    "server with --jars (the path is that of shmring.spark.jar_path()), "
    "--conf spark.shmring.functions=on"
)


def jar_path() -> str:
    """Return the path of the jar, for ``--jars``, ``spark.jars`` or the driver's class path.

    If the installation was built without Spark's jars, it has no jar: then this call makes it once,
    with this machine's JDK, and keeps it in the user's cache.

    Raises
    ------
    ShmringError : there is no jar and it cannot be made; the text says what is missing
    """
    folder = Path(shmring.__file__).parent / "jars"
    jar = folder / "shmring.jar"
    if jar.exists():
        return str(jar)
    if not (folder / "src").exists():
        raise ShmringError(
            f"this installation of shmring has no jar ({jar}): it was built with SHMRING_JVM=OFF"
        )
    return str(kept_jar(folder / "src"))


@documented(PluginOptions)
def configure(
    builder: SparkSession.Builder,
    *,
    sidecars: Mapping[str, str] | None = None,
    functions: bool | None = None,
    driver: bool | None = None,
    **options: Unpack[PluginOptions],
) -> SparkSession.Builder:
    """Let a session's Python functions take batches from rings, and let it read rings as tables.

    >>> spark = configure(SparkSession.builder).getOrCreate()  # doctest: +SKIP
    >>> spark.read.format("shmring").option("ring", "orders").load()  # doctest: +SKIP

    This adds the jar, and sidecars that live with the session's executors:

    >>> builder = SparkSession.builder.master("local[2]")  # doctest: +SKIP
    >>> builder = configure(builder, sidecars={"scorer": "scorer:Scorer"})  # doctest: +SKIP
    >>> scored = df.mapInArrow(through("scorer"), schema)  # doctest: +SKIP

    The plugin starts and ends the sidecars with each executor; tasks wait for loading sidecars. A
    module that is a single file, such as ``scorer.py``, is sent to the executors with the job; a
    package must be installed there, or be in a zip file of ``spark.submit.pyFiles``. Entries of
    ``spark.jars``, ``spark.plugins`` and ``spark.files`` stay, whether they come from the builder,
    spark-submit or spark-defaults.conf. For sidecars with different options, call this once for
    each.

    A session of a Spark Connect server uses the server's jar and sidecars. For such a session this
    only sets ``spark.shmring.functions``, and prints to standard error how to start the server.

    Parameters
    ----------
    sidecars : "module:function" or "module:Class", by the name that :func:`through` uses
    functions : whether Spark's own Python workers take batches from rings, for all functions of
        Arrow or pandas that the job has. None: as ``spark.shmring.functions`` is set in the
        builder, for spark-submit, or by an earlier session of this process; True if it is not
        set. The executors' Python needs shmring. A local session that names no Python uses the
        driver's: this call sets ``PYSPARK_PYTHON``
    driver : whether ``df.toArrow()`` and ``df.toPandas()`` get their batches in memory that tasks
        on the driver's host share with this process. None: as ``spark.shmring.driver`` is set; True
        if it is not set
    options : options of each sidecar

    Raises
    ------
    ValueError : a sidecar's function has no valid name, or its module is not found here
    ShmringError : there is no jar, and it cannot be made; or the session is one of a Spark Connect
        server, and has options or sidecars that only the server can have
    MissingExtra : pyspark is not installed
    """
    need("pyspark", "a Spark session", "spark")
    for name in sidecars or ():
        check_sidecar_name(name)
    settings = settings_of(checked(PluginOptions, options))
    switches: dict[str, object] = {"functions": functions, "driver": driver}
    for switch, value in switches.items():
        if value is not None and not isinstance(value, bool):
            raise TypeError(f"{switch} must be True or False, not {value!r}")
    if _is_of_a_server(builder):
        if sidecars or settings:
            raise ShmringError(f"{_OF_A_SERVER} and spark.shmring.sidecar.NAME.function")
        print(f"shmring: {_OF_A_SERVER}", file=sys.stderr)
        return builder if functions is None else builder.config(FUNCTIONS, _WORDS[functions])
    if sidecars and (remote := _remote(builder)):
        raise ShmringError(
            f"sidecars do not start in a Spark Connect session on {remote!r}: the server that "
            "Spark starts for it ignores spark.plugins; use SparkSession.builder.master(...) "
            "without Spark Connect, or a server that is started by itself, with jar and sidecars"
        )
    given: dict[str, str] = {**_settings_outside(), **getattr(builder, "_options", {})}
    is_drivers_python = _leaves_python_to_driver(given)
    wanted = {"spark.jars": _listed(jar_path(), given.get("spark.jars", ""))}
    if sidecars:
        wanted["spark.plugins"] = _listed(given.get("spark.plugins", ""), _PLUGIN)
        files = filter(None, map(_file_of, sidecars.values()))
        if files := _listed(given.get("spark.files", ""), *files):
            wanted["spark.files"] = files
        if is_drivers_python:
            wanted["spark.shmring.python"] = sys.executable
        for name, function in sidecars.items():
            for key, value in {"function": function, **settings}.items():
                wanted[f"spark.shmring.sidecar.{name}.{key}"] = value
    elif settings:
        raise ValueError(f"{', '.join(settings)} are for sidecars: name some (sidecars=...)")
    for switch, choice in {FUNCTIONS: functions, _DRIVER: driver}.items():
        wanted[switch] = given.get(switch, "on") if choice is None else _WORDS[choice]
    # Replace toArrow() and toPandas() even if the setting is off: a session may turn it on later.
    import_module("shmring.spark.driver").equip()
    if wanted[FUNCTIONS] == "on" and is_drivers_python:
        # Spark would start the `python3` in PATH, which need not have shmring.
        os.environ["PYSPARK_PYTHON"] = sys.executable
    for key, value in wanted.items():
        builder = builder.config(key, value)
    return builder


# CHANGE: edit this for a new version of Spark
def _is_of_a_server(builder: Any) -> bool:
    """Whether the builder connects to a Spark Connect server that another process has started."""
    return hasattr(builder, "_channel_builder") or _remote(builder).startswith("sc://")


def _remote(builder: Any) -> str:
    """Return the address of the builder's Spark Connect server, running or not; empty if none."""
    options = getattr(builder, "_options", {})
    mode = options.get("spark.api.mode", os.environ.get("SPARK_API_MODE", "")).lower()
    master = options.get("spark.master", "local") if mode == "connect" else ""
    return options.get("spark.remote", os.environ.get("SPARK_REMOTE", master))


def _settings_outside() -> dict[str, str]:
    """Return the settings of spark-submit and spark-defaults.conf, which a builder may override."""
    # Import argparse only here, because workers' daemons import this file: an argparse.py that a
    # task brings would then be ignored, while Spark's own workers would import it.
    import argparse

    from pyspark import SparkConf, SparkContext
    from pyspark.find_spark_home import _find_spark_home  # pyright: ignore[reportPrivateUsage]

    context: Any = SparkContext
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # ask the JVM that spark-submit has started
        context._ensure_initialized()
    if context._jvm is not None:
        return dict(SparkConf().getAll())
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for option in ("--jars", "--files", "--properties-file", "--master"):
        parser.add_argument(option)
    parser.add_argument("--conf", "-c", action="append", default=[])
    asked, _ = parser.parse_known_args(shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "")))
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(_find_spark_home(), "conf")
    settings = _properties(
        Path(asked.properties_file or os.path.join(folder, "spark-defaults.conf"))
    )
    settings |= dict(setting.split("=", 1) for setting in asked.conf if "=" in setting)
    named = {"spark.jars": asked.jars, "spark.files": asked.files, "spark.master": asked.master}
    return settings | {key: value for key, value in named.items() if value}


def _properties(file: Path) -> dict[str, str]:
    """Read a file of lines such as ``spark.jars  a.jar,b.jar``."""
    settings: dict[str, str] = {}
    lines = file.read_text().splitlines() if file.exists() else []
    for line in map(str.strip, lines):
        if line and line[0] not in "#!":
            key, *value = re.split(r"\s*[=:\s]\s*", line, maxsplit=1)
            settings[key] = "".join(value)
    return settings


def _listed(*values: str) -> str:
    """Join comma-separated lists without duplicates; a path equals its URL with `file:`."""
    parts: dict[str, str] = {}
    for part in (part.strip() for value in values for part in value.split(",")):
        if part:
            parts.setdefault(re.sub("^file:/+", "/", part), part)
    return ",".join(parts.values())


def _leaves_python_to_driver(options: Mapping[str, str]) -> bool:
    """Whether a session is local and names no Python."""
    named = ("spark.shmring.python", "spark.pyspark.python")
    is_named = "PYSPARK_PYTHON" in os.environ or any(name in options for name in named)
    return options.get("spark.master", "local").startswith("local") and not is_named


def _file_of(function: str) -> str | None:
    """Return the file of a function's module, if the module is a file and not a package."""
    module, attribute = parts_of(function)
    package, dot, _ = module.partition(".")
    spec = find_spec(package)
    if spec is None:
        raise ValueError(
            f"no module {package!r} is found here, for {function}: the job cannot bring it along; "
            f"for a module that only executors have, set spark.shmring.sidecar.NAME.function"
        )
    if module == f"{package}.py" and spec.submodule_search_locations is None:
        raise ValueError(
            f"{function!r} names a file: a sidecar is named as module:function, "
            f"{package}:{attribute}"
        )
    is_file = not dot and spec.submodule_search_locations is None
    return spec.origin if is_file and spec.origin and spec.origin.endswith(".py") else None


# --- making the jar -------------------------------------------------------------------------------


class _Spark(NamedTuple):
    jars: Path
    version: str


class _Tools(NamedTuple):
    javac: str
    jar: str
    include: Path
    cc: str


def kept_jar(sources: Path) -> Path:
    """Return the cached jar for the installed pyspark; make it from the sources if missing."""
    spark = _find_spark()
    folder = _cache() / f"jar-{spark.version}-{platform.machine()}-{_digest(sources)}"
    jar = folder / "shmring.jar"
    if jar.exists():
        return _checked(jar)
    tools = _find_tools()
    try:
        folder.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for own in (folder.parent, folder):
            own.mkdir(mode=0o700, exist_ok=True)
            _check_own(own)
        with open(folder / "lock", "a", opener=open_own) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # wait while another process makes the same jar
            if not jar.exists():
                print(
                    f"shmring: making the jar for Spark {spark.version} with {tools.javac}; this "
                    f"happens once, it is kept as {jar}",
                    file=sys.stderr,
                )
                _make(sources, spark, tools, jar)
    except OSError as error:
        raise ShmringError(f"the jar for Spark cannot be kept in {folder}: {error}") from error
    return _checked(jar)


def _checked(jar: Path) -> Path:
    """Return a kept jar; raise if another user may have written it, because the JVM will run it."""
    for own in (jar.parent.parent, jar.parent, jar):
        _check_own(own)
    return jar


def _check_own(path: Path) -> None:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ShmringError(
            f"the jar for Spark is not loaded from the cache: other users may write {path} (owner "
            f"{found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}); remove it, or set "
            "XDG_CACHE_HOME to a folder of your own"
        )


def _cache() -> Path:
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shmring"
    except RuntimeError:  # the user id has no entry in passwd, as is common in containers
        raise ShmringError(
            "there is no folder for the jar for Spark: this user has no home; set XDG_CACHE_HOME"
        ) from None


def _find_spark() -> _Spark:
    spec = find_spec("pyspark")
    if spec is not None and spec.submodule_search_locations:
        jars = Path(spec.submodule_search_locations[0]) / "jars"
        for catalyst in jars.glob("spark-catalyst_*.jar"):
            return _Spark(jars, catalyst.stem.rpartition("_")[2].partition("-")[2])
    # CHANGE: edit this for a new version of Spark
    raise _missing("pyspark (pip install 'pyspark>=4.1')")


def _find_tools() -> _Tools:
    home = os.environ.get("JAVA_HOME")
    javac = shutil.which("javac", path=f"{home}/bin") if home else None
    javac = javac or shutil.which("javac")
    if javac is None:
        raise _missing("a JDK of Java 17 or later (openjdk-17-jdk-headless)")
    found = Path(javac).resolve().parent
    include = found.parent / "include"
    if not (include / "jni.h").exists():
        raise _missing(f"jni.h in {include}")
    cc = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")
    if cc is None:
        raise _missing("a C compiler (gcc)")
    return _Tools(javac, str(found / "jar"), include, cc)


def _missing(what: str) -> ShmringError:
    return ShmringError(
        f"this installation of shmring has no jar, and cannot make one without {what}"
    )


def _make(sources: Path, spark: _Spark, tools: _Tools, jar: Path) -> None:
    with tempfile.TemporaryDirectory(dir=jar.parent, prefix="making-") as made:
        tree = Path(made) / "tree"
        shutil.copytree(sources / "jvm" / "resources", tree)
        _compile_library(sources, tools, tree)
        classes = map(str, sorted((sources / "jvm" / "java").rglob("*.java")))
        options = ("--release", "17", "-proc:none", "-encoding", "UTF-8", "-nowarn", "-parameters")
        _run(tools.javac, *options, "-cp", f"{spark.jars}/*", "-d", str(tree), *classes)
        new = Path(made) / jar.name
        manifest = Path(made) / "manifest.txt"
        manifest.write_text(
            f"Implementation-Title: shmring\nImplementation-Version: {__version__}\n"
        )
        _run(
            *(tools.jar, "--create", "--file", str(new), "--manifest", str(manifest)),
            *("-C", str(tree), "."),
        )
        new.chmod(0o600)  # the umask may have left other permissions
        os.replace(new, jar)


def _compile_library(sources: Path, tools: _Tools, tree: Path) -> None:
    machine = platform.machine().lower()
    folder = tree / "io" / "shmring" / f"linux-{_MACHINES.get(machine, machine)}"
    folder.mkdir(parents=True)
    core, jni = sources / "core", sources / "jvm" / "jni"
    _run(
        *(tools.cc, "-shared", "-fPIC", "-O3", "-DNDEBUG", "-std=c11", "-D_GNU_SOURCE", "-pthread"),
        *("-fvisibility=hidden", f"-Wl,--version-script={jni / 'exports.map'}"),
        *(f"-I{folder}" for folder in (core / "include", core / "src", jni, tools.include)),
        f"-I{tools.include / 'linux'}",
        *_files(core / "src", jni),
        *("-o", str(folder / "libshmring_jni.so")),
    )


def _files(*folders: Path) -> Iterable[str]:
    return (str(file) for folder in folders for file in sorted(folder.glob("*.c")))


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        said = (result.stderr or result.stdout).strip().splitlines()
        raise ShmringError(
            f"the jar for Spark cannot be made: {command[0]} says: " + "\n".join(said[-10:])
        )


def _digest(sources: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(file for file in sources.rglob("*") if file.is_file()):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(sources)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]
