"""
 Keeps a running count of the words of a Kafka topic, over restarts of the driver.

 Usage: stateful_kafka_wordcount.py <broker_list> <topic> <checkpoint-directory>
   <broker_list> is a list of one or more Kafka brokers, as host:port with commas between
   <topic> is a Kafka topic to consume from, from its beginning
   <checkpoint-directory> directory to HDFS-compatible file system which checkpoint data
"""
from __future__ import print_function

import sys

from pyspark import SparkContext
from pyspark.streaming import StreamingContext
from pyspark.streaming.kafka import KafkaUtils


def updateFunc(new_values, last_sum):
    return sum(new_values) + (last_sum or 0)


def createContext(brokers, topic, checkpoint):
    # If you do not see this printed, the context was made from the checkpoint
    print("Creating new context")
    sc = SparkContext(appName="StatefulKafkaWordCount")
    ssc = StreamingContext(sc, 1)
    ssc.checkpoint(checkpoint)
    kafkaParams = {"metadata.broker.list": brokers, "auto.offset.reset": "smallest"}
    messages = KafkaUtils.createDirectStream(ssc, [topic], kafkaParams)
    counts = messages.flatMap(lambda message: message[1].split(" ")) \
                     .map(lambda word: (word, 1)) \
                     .updateStateByKey(updateFunc)
    counts.checkpoint(2)
    counts.pprint()
    return ssc


if __name__ == "__main__":
    if len(sys.argv) != 4:
        print("Usage: stateful_kafka_wordcount.py <broker_list> <topic> <checkpoint-directory>",
              file=sys.stderr)
        sys.exit(2)
    brokers, topic, checkpoint = sys.argv[1:]
    ssc = StreamingContext.getOrCreate(
        checkpoint, lambda: createContext(brokers, topic, checkpoint))
    ssc.start()
    ssc.awaitTermination()
