"""A job whose rows go through the model server."""

from pyspark.sql import SparkSession

import shmring.spark

builder = SparkSession.builder.master("local[2]")
builder = shmring.spark.configure(builder, sidecars={"scoring": "scorer:Scorer"}, workers=2)
spark = builder.getOrCreate()
scored = spark.range(1000).mapInArrow(shmring.spark.through("scoring"), "id long, score long")
print(scored.selectExpr("sum(score)").first()[0])
spark.stop()
