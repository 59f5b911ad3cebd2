"""Wording of texts for people: numbers with their nouns."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 ring", "1,024 rings"; `noun` is the singular."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
