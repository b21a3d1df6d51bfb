"""
 Adds up the amounts of orders of a Kafka topic in a SQLite database, exactly once: the offsets that
 were read are written in the transaction of the results, and a next run begins at them.

 Usage: kafka_offsets_to_database.py <broker_list> <topic> <database>
   <broker_list> is a list of one or more Kafka brokers, as host:port with commas between
   <topic> is a Kafka topic of messages such as {"customer": "ann", "amount": 3}
   <database> is a file of SQLite
"""
from __future__ import print_function

import json
import sqlite3
import sys

from pyspark import SparkContext
from pyspark.streaming import StreamingContext
from pyspark.streaming.kafka import KafkaUtils, TopicAndPartition

offsetRanges = []


def storeOffsetRanges(rdd):
    global offsetRanges
    offsetRanges = rdd.offsetRanges()
    return rdd


def readOffsets(database):
    """Return the offsets at which the last run has ended, None for a first run."""
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS sums (customer TEXT PRIMARY KEY, amount INT)")
        connection.execute("CREATE TABLE IF NOT EXISTS offsets "
                           "(topic TEXT, part INT, until INT, PRIMARY KEY (topic, part))")
        rows = connection.execute("SELECT topic, part, until FROM offsets").fetchall()
    return {TopicAndPartition(topic, part): until for topic, part, until in rows} or None


def write(database, sums):
    """Write results and offsets in one transaction."""
    connection = sqlite3.connect(database)
    with connection:
        for customer, amount in sums:
            connection.execute("INSERT OR IGNORE INTO sums VALUES (?, 0)", (customer,))
            connection.execute("UPDATE sums SET amount = amount + ? WHERE customer = ?",
                               (amount, customer))
        for o in offsetRanges:
            connection.execute("INSERT OR REPLACE INTO offsets VALUES (?, ?, ?)",
                               (o.topic, o.partition, o.untilOffset))
    connection.close()
    for o in offsetRanges:
        print("%s %s %s %s" % (o.topic, o.partition, o.fromOffset, o.untilOffset))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        print("Usage: kafka_offsets_to_database.py <broker_list> <topic> <database>",
              file=sys.stderr)
        sys.exit(2)
    brokers, topic, database = sys.argv[1:]
    sc = SparkContext(appName="KafkaOffsetsToDatabase")
    ssc = StreamingContext(sc, 1)

    orders = KafkaUtils.createDirectStream(
        ssc, [topic], {"metadata.broker.list": brokers, "auto.offset.reset": "smallest"},
        fromOffsets=readOffsets(database), valueDecoder=lambda m: json.loads(m.decode("utf-8")))
    orders.transform(storeOffsetRanges) \
          .map(lambda message: (message[1]["customer"], message[1]["amount"])) \
          .reduceByKey(lambda a, b: a + b) \
          .foreachRDD(lambda rdd: write(database, rdd.collect()))

    ssc.start()
    ssc.awaitTermination()
