"""Prints the messages of a ring until the end marker: a batch job of Spark."""

from pyspark.sql import SparkSession

import shmring.spark

shmring.open_or_create("orders", slots=65_536)
spark = shmring.spark.configure(SparkSession.builder.master("local[1]")).getOrCreate()
messages = spark.read.format("shmring").option("branch", "billing").option("until", "end")
for row in messages.load("orders").select("message").collect():
    print(row.message.decode())
spark.stop()
