"""Comments that cannot be read alone, because their first word needs a noun from elsewhere.

`make lint` refuses a comment, a docstring or a Javadoc parameter that begins with one of `REFUSED`:
a reader meets one comment at a time, mostly by grep. Begin with a noun or a verb, and repeat the
noun. A question may begin with such a word.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

REFUSED = frozenset(
    {"of", "that", "which", "whose", "who", "whom", "whoever", "what", "whatever"}
    | {"those", "these", "such", "as", "than"}
)
REFUSED_PAIRS = frozenset({"to be", "in which", "from which", "for whom", "by whom", "with whom"})
# Strings come first: a comment mark inside of one begins no comment.
_C_COMMENT = re.compile(
    r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    r"|(/\*.*?\*/|//[^\n]*(?:\n[ \t]*//[^\n]*)*)",
    re.DOTALL,
)
_SQL_COMMENT = re.compile(r"(--[^\n]*(?:\n[ \t]*--[^\n]*)*)")
_PARAMETER = re.compile(r"@(?:param\s+\S+|return|throws\s+\S+)\s+([^@]*)")
_MARKS = re.compile(r"^[\s/*#!<-]+|\n\s*(?:\*(?!/)|//|#|--)", re.MULTILINE)
Comment = tuple[int, str]  # line number, text


def _python(text: str) -> Iterator[Comment]:
    """Yields each block of comment lines, each trailing comment and each docstring."""
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            alone = not token.line[:column].strip()
            if not alone or row != last + 1:
                yield row, token.string.lstrip("#: ")
            last = row if alone else -1
    for node in ast.walk(ast.parse(text)):
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, documented) and (words := ast.get_docstring(node)):
            yield node.body[0].lineno, words


def _other(text: str, pattern: re.Pattern[str]) -> Iterator[Comment]:
    """Yields each comment of a C, Java or SQL file, and the text of each Javadoc tag in it."""
    for found in pattern.finditer(text):
        if found[1]:
            line = text.count("\n", 0, found.start(1)) + 1
            words = _MARKS.sub(" ", found[1]).strip()
            yield line, words
            yield from ((line, tag[1]) for tag in _PARAMETER.finditer(words))


def opening(words: str) -> str | None:
    """Returns the refused opening of a comment, or None if the comment may begin as it does."""
    found = re.match(r"[-\s(]*([A-Za-z']+)(?:\s+([A-Za-z']+))?", words)
    if found is None or re.match(r"[^.?:;]*\?", words):
        return None
    first, both = found[1].lower(), f"{found[1]} {found[2]}".lower()
    return first if first in REFUSED else both if both in REFUSED_PAIRS else None


def refused(name: str, text: str) -> list[str]:
    """Returns "name:line: words" for each comment of a file with a refused opening."""
    if name.endswith(".py"):
        comments = _python(text)
    else:
        comments = _other(text, _SQL_COMMENT if name.endswith(".sql") else _C_COMMENT)
    return [
        f"{name}:{line}: {' '.join(words.split())[:80]}"
        for line, words in comments
        if opening(words)
    ]


def main() -> int:
    """Prints the refused comments of the named files, or of all files that git tracks."""
    files = (
        sys.argv[1:]
        or subprocess.run(
            ["git", "ls-files", "*.py", "*.c", "*.h", "*.java", "*.sql"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
    )
    bad = [row for file in files for row in refused(file, Path(file).read_text())]
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
