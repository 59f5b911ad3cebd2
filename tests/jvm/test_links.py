"""A Spark that lacks what the nodes over rings use keeps all functions to itself."""

from __future__ import annotations

import re

from blocks import ROOT
from java_programs import Java, check
from pyspark.util import PythonEvalType

# Methods that classes of Java or Scala have, too, of which Spark's are made.
INHERITED = {
    *("productArity", "productIterator", "hashCode", "equals"),
    *("size", "length", "isEmpty", "getOrDefault"),
}


def test_each_member_of_sparks_that_is_lacking_is_missed(java: Java) -> None:
    used, *told = check(java("io.shmring.spark.LinksCheck")).splitlines()
    missing, unmissed = told[:3], told[3:]
    assert int(used) > 700  # all packages use so many, those of sources and sinks, too
    assert missing == ["Optional.empty"] * 3
    assert {name.partition("(")[0].rpartition(".")[2] for name in unmissed} <= INHERITED


def test_each_kind_of_sparks_functions_has_a_row_or_is_left_to_spark() -> None:
    table = ROOT / "native/jvm/java/io/shmring/spark/request/FunctionKind.java"
    of_spark = {name for name in vars(PythonEvalType) if name.startswith("SQL_")}
    # Plain functions, and those of streams with a state.
    left = {name for name in of_spark if "_STATE" in name} | {"SQL_BATCHED_UDF", "SQL_TABLE_UDF"}
    assert of_spark - left <= set(re.findall(r"\bSQL_\w+", table.read_text()))
