"""A job whose rows go through the model server."""

from pyspark.sql import SparkSession

import shmring.spark

spark = SparkSession.builder.master("local[2]").getOrCreate()
scored = spark.range(1000).mapInArrow(shmring.spark.through("scoring"), "id long, score long")
print(scored.selectExpr("sum(score)").first()[0])
spark.stop()
