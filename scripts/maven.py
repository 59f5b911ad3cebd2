"""The jar as a Maven artifact: lays it into a repository, with pom, sources and javadoc."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GROUP, ARTIFACT = "io.shmring", "shmring-spark"
DATE = "2020-01-01T00:00:00+00:00"

POM = """\
<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>{group}</groupId>
  <artifactId>{artifact}</artifactId>
  <version>{version}</version>
  <name>shmring</name>
  <description>Rings in shared memory for Java and Spark. Spark's and Arrow's classes are those
    of the Spark that uses it: nothing else is needed.</description>
  <url>{urls[Homepage]}</url>
  <scm>
    <url>{urls[Repository]}</url>
    <connection>scm:git:{urls[Repository]}</connection>
  </scm>
  <licenses>
    <license>
      <name>Apache-2.0</name>
      <url>https://www.apache.org/licenses/LICENSE-2.0.txt</url>
      <distribution>repo</distribution>
    </license>
  </licenses>
  <developers>
    <developer>
      <name>The shmring authors</name>
    </developer>
  </developers>
</project>
"""


def version() -> str:
    """The version, from the one place where it stands."""
    header = (ROOT / "native/core/include/shmring.h").read_text()
    found = re.search(r'#define SHMRING_VERSION "(.+?)"', header)
    assert found is not None
    return found[1]


def urls() -> dict[str, str]:
    """The project's addresses, from the one place where they stand."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["urls"]


def _run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}{command[0]} failed with status {done.returncode}")


def _packed(folder: Path, jar: Path) -> Path:
    _run("jar", "--create", "--file", jar, "--date", DATE, "-C", folder, ".")
    return jar


def publish(jar: Path, spark_jars: Path, work: Path, repository: Path) -> Path:
    """Lay the artifact into a repository, as `mvn install` would.

    Parameters
    ----------
    jar : with its classes and JNI libraries
    spark_jars : Spark's, which the javadoc names
    work : folder for what is made on the way
    repository : the folder of the repository
    """
    java = ROOT / "native/jvm"
    sources, docs = work / "sources", work / "javadoc"
    for folder in (sources, docs):
        shutil.rmtree(folder, ignore_errors=True)
    for part in ("java", "resources"):  # sources of the jar
        shutil.copytree(java / part, sources, dirs_exist_ok=True)
    for name in ("LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, sources)
    _run(
        *("javadoc", "-quiet", "-Xdoclint:none", "-encoding", "UTF-8", "-notimestamp", "-d", docs),
        *("-cp", f"{spark_jars}/*", *sorted(sources.rglob("*.java"))),
    )
    number = version()
    place = repository / GROUP.replace(".", "/") / ARTIFACT / number
    place.mkdir(parents=True, exist_ok=True)
    stem = f"{ARTIFACT}-{number}"
    shutil.copy(jar, place / f"{stem}.jar")
    _packed(sources, place / f"{stem}-sources.jar")
    _packed(docs, place / f"{stem}-javadoc.jar")
    pom = POM.format(group=GROUP, artifact=ARTIFACT, version=number, urls=urls())
    (place / f"{stem}.pom").write_text(pom)
    for file in list(place.iterdir()):
        digest = hashlib.sha1(file.read_bytes()).hexdigest()
        file.with_name(f"{file.name}.sha1").write_text(digest)
    return place
