"""Sends one message and the end marker to a ring: a batch job of Spark."""

from pyspark.sql import SparkSession

import shmring.spark

shmring.open_or_create("orders", slots=65_536)
spark = shmring.spark.configure(SparkSession.builder.master("local[1]")).getOrCreate()
hello = spark.createDataFrame([(b"hello",)], "message binary").write.format("shmring")
hello.option("ring", "orders").option("endMarker", "true").mode("append").save()
spark.stop()
