"""
 Keeps a running count of the words received from a TCP server, and writes the most frequent ones of
 every batch to a file. The counts are checkpointed.

 Usage: recoverable_network_wordcount.py <hostname> <port> <checkpoint-directory> <output-file>
   <hostname> and <port> describe the TCP server that Spark Streaming would connect to receive data.
   <checkpoint-directory> directory to HDFS-compatible file system which checkpoint data
   <output-file> file to which the word counts will be appended
"""
from __future__ import print_function

import os
import sys

from pyspark import SparkConf, SparkContext
from pyspark.streaming import StreamingContext

# Too frequent to be of interest
STOP_WORDS = ["a", "an", "the"]


def getStopWords(sparkContext):
    """Get or register the broadcast variable of the excluded words."""
    if "stopWords" not in globals():
        globals()["stopWords"] = sparkContext.broadcast(frozenset(STOP_WORDS))
    return globals()["stopWords"]


class WordCount(object):
    """The count of a word, and the number of its batches."""

    def __init__(self, count=0, batches=0):
        self.count = count
        self.batches = batches

    def plus(self, ones):
        return WordCount(self.count + sum(ones), self.batches + 1)


def updateFunction(newValues, runningCount):
    """Add the new values of a word to its running count."""
    if runningCount is None:
        runningCount = WordCount()
    if not newValues:
        return runningCount
    return runningCount.plus(newValues)


def createContext(host, port, checkpoint, outputPath):
    """Set up the context of the first run."""
    # If you do not see this printed, that means the StreamingContext has been loaded
    # from the checkpoint
    print("Creating new context")
    if os.path.exists(outputPath):
        os.remove(outputPath)
    conf = SparkConf().setAppName("RecoverableNetworkWordCount") \
                      .set("spark.default.parallelism", "2")
    sc = SparkContext(conf=conf)
    ssc = StreamingContext(sc, 1)
    ssc.checkpoint(checkpoint)

    lines = ssc.socketTextStream(host, port)
    runningCounts = lines.flatMap(lambda line: line.split()) \
                         .map(lambda word: (word.lower(), 1)) \
                         .updateStateByKey(updateFunction)
    runningCounts.checkpoint(2)

    def report(time, rdd):
        stopWords = getStopWords(rdd.context)
        top = rdd.filter(lambda pair: pair[0] not in stopWords.value) \
                 .map(lambda pair: (pair[1].count, pair[1].batches, pair[0])) \
                 .takeOrdered(10, key=lambda count: (-count[0], count[2]))
        line = "Counts at time %s %s" % (time, [(word, n, batches) for n, batches, word in top])
        print(line)
        with open(outputPath, "a") as f:
            f.write(line + "\n")

    runningCounts.foreachRDD(report)
    return ssc


if __name__ == "__main__":
    if len(sys.argv) != 5:
        print("Usage: recoverable_network_wordcount.py <hostname> <port> "
              "<checkpoint-directory> <output-file>", file=sys.stderr)
        sys.exit(2)
    host, port, checkpoint, output = sys.argv[1:]
    ssc = StreamingContext.getOrCreate(
        checkpoint, lambda: createContext(host, int(port), checkpoint, output))
    ssc.start()
    ssc.awaitTermination()
    print("The streaming context has been stopped")
