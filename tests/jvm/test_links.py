"""A Spark that lacks what the nodes over rings use keeps all functions to itself."""

from __future__ import annotations

from java_programs import Java, check

# Methods that classes of Java or Scala have, too, of which Spark's are made.
INHERITED = {"productIterator", "hashCode", "equals", "size"}


def test_each_member_of_sparks_that_is_lacking_is_missed(java: Java) -> None:
    used, missing, *unmissed = check(java("io.shmring.spark.LinksCheck")).splitlines()
    assert int(used) > 300
    assert missing == "Optional.empty"
    assert {name.partition("(")[0].rpartition(".")[2] for name in unmissed} <= INHERITED
