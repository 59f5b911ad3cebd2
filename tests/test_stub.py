"""The extension's stub names what the extension has: no more, and in its classes no less."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import shmring
from shmring import _shmring

STUB = ast.parse((Path(shmring.__file__).parent / "_shmring.pyi").read_text())
STUBS = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
CLASSES = {
    name: node for name, node in STUBS.items() if isinstance(getattr(_shmring, name, None), type)
}


def names(body: list[ast.stmt]) -> set[str]:
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return {
        node.name if isinstance(node, functions) else node.target.id
        for node in body
        if isinstance(node, functions)
        or (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name))
    }


def names_of(node: ast.ClassDef) -> set[str]:
    bases = [STUBS[base.id] for base in node.bases if isinstance(base, ast.Name)]
    return names(node.body).union(*map(names_of, bases))


def test_functions_and_constants_of_the_stub_are_there():
    stub = names(STUB.body)
    assert {"attach", "SLOT_BYTES"} <= stub
    assert [name for name in stub if not hasattr(_shmring, name)] == []


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_what_the_stub_says_and_nothing_else(name):
    there = {attribute for attribute in dir(getattr(_shmring, name)) if attribute[0] != "_"}
    assert {found for found in names_of(CLASSES[name]) if found[0] != "_"} == there


def test_every_class_that_users_meet_is_in_the_stub():
    users = {"Ring", "Producer", "Consumer", "Claim", "Lease", "Batch"}
    assert users | {"ArrowLayout", "Bell"} == set(CLASSES)
