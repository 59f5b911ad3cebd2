"""A driver that is killed: streams one ring into another, `IN OUT CHECKPOINT`."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from shmring.spark.jvm import configure

source, sink, checkpoint = sys.argv[1:]
spark = configure(SparkSession.builder.master("local[2]")).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
frame = spark.readStream.format("shmring").option("ring", source).load()
query = (
    frame.writeStream.format("shmring")
    .option("ring", sink)
    .option("checkpointLocation", checkpoint)
    .start()
)
query.awaitTermination()
