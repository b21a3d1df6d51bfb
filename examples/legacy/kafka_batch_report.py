"""
 Reads a range of messages of a Kafka topic, once, and prints how many there are by key, and which
 were the last ones.

 Usage: kafka_batch_report.py <broker_list> <topic> <partition> <from> <until>
   <broker_list> is a list of one or more Kafka brokers, as host:port with commas between
   <topic> and <partition> is a partition of Kafka
   <from> and <until> are offsets; <until> itself is not read
"""
from __future__ import print_function

import sys

from pyspark import SparkContext
from pyspark.streaming.kafka import Broker, KafkaUtils, OffsetRange, TopicAndPartition

if __name__ == "__main__":
    if len(sys.argv) != 6:
        print("Usage: kafka_batch_report.py <broker_list> <topic> <partition> <from> <until>",
              file=sys.stderr)
        sys.exit(2)
    brokers, topic = sys.argv[1:3]
    partition, start, until = map(int, sys.argv[3:])
    sc = SparkContext(appName="KafkaBatchReport")
    sc.setLogLevel("WARN")

    kafkaParams = {"metadata.broker.list": brokers}
    offsetRanges = [OffsetRange(topic, partition, start, until)]
    host, port = brokers.split(",")[0].split(":")
    leaders = {TopicAndPartition(topic, partition): Broker(host, int(port))}

    counts = KafkaUtils.createRDD(sc, kafkaParams, offsetRanges, leaders).countByKey()
    for key, count in sorted(counts.items(), key=str):
        print("%s: %d" % (key, count))

    last = KafkaUtils.createRDD(sc, kafkaParams, offsetRanges,
                                messageHandler=lambda m: (m.offset, m.key, m.message)).top(3)
    for offset, key, message in last:
        print("%d %s %s" % (offset, key, message))
    sc.stop()
