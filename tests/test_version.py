"""One version, from one place: the header."""

from __future__ import annotations

import re
import zipfile
from importlib import metadata
from pathlib import Path

from programs import cli

import shmring
from shmring.spark import jar_path

ROOT = Path(__file__).parent.parent
HEADER = ROOT / "native/core/include/shmring.h"
(VERSION,) = re.findall(r'#define SHMRING_VERSION "(.+?)"', HEADER.read_text())


def test_python_package_and_extension_have_the_version_of_the_header() -> None:
    assert shmring.__version__ == VERSION
    assert metadata.version("shmring") == VERSION


def test_the_command_line_says_it(tmp_path: Path) -> None:
    assert cli("--version", cwd=tmp_path).stdout.split()[-1] == VERSION


def test_c_programs_find_it_in_header_pkg_config_and_cmake() -> None:
    installed = Path(shmring.get_include()) / "shmring.h"
    assert installed.read_text() == HEADER.read_text()
    lib = Path(shmring.get_library()).parent
    assert f"Version: {VERSION}\n" in (lib / "pkgconfig/shmring.pc").read_text()
    cmake = (lib / "cmake/shmring/shmringConfigVersion.cmake").read_text()
    assert f'set(PACKAGE_VERSION "{VERSION}")' in cmake


def test_the_jar_says_it() -> None:
    manifest = zipfile.ZipFile(jar_path()).read("META-INF/MANIFEST.MF").decode()
    assert f"Implementation-Version: {VERSION}\r\n" in manifest


def test_the_changelog_begins_with_it() -> None:
    (first, *_) = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first == VERSION


def test_the_library_is_there_once() -> None:
    library = Path(shmring.get_library())
    assert [file.name for file in library.parent.glob("libshmring*")] == ["libshmring.so"]


# --- pages of a package index ----------------------------------------------------------------


def test_licence_and_authors_stand_in_the_metadata() -> None:
    found = metadata.metadata("shmring")
    assert found["License-Expression"] == "Apache-2.0"
    assert found.get_all("License-File") == ["LICENSE", "NOTICE"]
    assert found["Author"] == "The shmring authors"
    distribution = metadata.distribution("shmring")
    for name in ("LICENSE", "NOTICE"):
        text = distribution.read_text(f"licenses/{name}")
        assert text == (ROOT / name).read_text()


def test_the_readme_of_the_index_has_no_link_that_leads_nowhere() -> None:
    found = metadata.metadata("shmring")
    assert found["Description-Content-Type"] == "text/markdown"
    text = found.get_payload()
    assert text.startswith("# shmring")
    code = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)]*)\)", code.sub("", text))
    assert [link for link in links if not link.startswith(("http://", "https://"))] == []
