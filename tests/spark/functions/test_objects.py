"""Columns whose values Spark takes as objects: of users' own types, and variants."""

from __future__ import annotations

import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from shmring.spark import through

METHODS = ["mapInPandas", "applyInPandas"]


def applied(frame, method, function):
    groups = frame.groupBy("k") if method == "applyInPandas" else frame
    return getattr(groups, method)(function, frame.schema)


@pytest.mark.parametrize("method", METHODS)
def test_users_own_types_come_back(spark, served, method):
    name = served("identity")
    vector = VectorUDT()
    schema = StructType(
        [
            StructField("k", LongType()),
            StructField("v", vector),
            StructField("list", ArrayType(vector)),
            StructField("s", StructType([StructField("v", vector)])),
        ]
    )
    dense, sparse = Vectors.dense([1.0, 2.0]), Vectors.sparse(4, [1, 3], [3.0, 4.0])
    data = [(1, dense, [sparse, None], (dense,)), (1, None, None, None), (1, sparse, [], (None,))]
    frame = spark.createDataFrame(data, schema).coalesce(1)
    assert applied(frame, method, through(name)).collect() == frame.collect()


@pytest.mark.parametrize("method", METHODS)
def test_variants_come_back(spark, served, method):
    name = served("identity")
    frame = spark.range(5, numPartitions=1).selectExpr(
        "id % 1 k",
        "if(id = 3, null, parse_json('{\"a\": [1, ' || id || ']}')) v",
        "array(parse_json('1'), parse_json('\"b\"'), null) list",
    )
    result = applied(frame, method, through(name))
    text = ("k", "to_json(v) v", "transform(list, each -> to_json(each)) list")
    assert result.selectExpr(*text).collect() == frame.selectExpr(*text).collect()
