"""
 Counts words in UTF-8 encoded, '\\n' delimited text that a consumer group receives from Kafka every
 second.

 Usage: kafka_wordcount.py <zk> <group> <topic>
   <zk> is the ZooKeeper quorum of the brokers, as host:port with commas between
   <group> is the consumer group
   <topic> is a Kafka topic to consume from, by two receivers
"""
from __future__ import print_function

import sys

from pyspark import SparkContext, StorageLevel
from pyspark.streaming import StreamingContext
from pyspark.streaming.kafka import KafkaUtils

if __name__ == "__main__":
    if len(sys.argv) != 4:
        print("Usage: kafka_wordcount.py <zk> <group> <topic>", file=sys.stderr)
        sys.exit(2)
    zkQuorum, group, topic = sys.argv[1:]
    sc = SparkContext(appName="PythonStreamingKafkaWordCount")
    ssc = StreamingContext(sc, 1)

    params = {"auto.offset.reset": "smallest", "auto.commit.interval.ms": "1000"}
    receivers = [
        KafkaUtils.createStream(ssc, zkQuorum, group, {topic: 1}, params,
                                StorageLevel.MEMORY_ONLY)
        for _ in range(2)
    ]
    lines = ssc.union(*receivers).map(lambda x: x[1])
    counts = lines.flatMap(lambda line: line.split(" ")) \
                  .map(lambda word: (word, 1)) \
                  .reduceByKey(lambda a, b: a + b)
    counts.pprint()

    ssc.start()
    ssc.awaitTermination()
