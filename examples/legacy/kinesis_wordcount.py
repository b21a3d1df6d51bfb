"""
 Counts the words of the records of an Amazon Kinesis stream, in batches of a second.

 Usage: kinesis_wordcount.py <app-name> <stream-name> <endpoint-url> <region-name>
   <app-name> name of the consumer app, used to track the read data in DynamoDB
   <stream-name> name of the Kinesis stream
   <endpoint-url> endpoint of the Kinesis service
     (e.g. https://kinesis.us-east-1.amazonaws.com)
   <region-name> region of the endpoint (e.g. us-east-1)

 The keys are found where the AWS SDK looks for them, such as in the environment variables
 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY:
    `$ dstreams run examples/legacy/kinesis_wordcount.py myApp myStream \\
        https://kinesis.us-east-1.amazonaws.com us-east-1`
"""
from __future__ import print_function

import sys

from pyspark import SparkContext
from pyspark.streaming import StreamingContext
from pyspark.streaming.kinesis import KinesisUtils, InitialPositionInStream

if __name__ == "__main__":
    if len(sys.argv) != 5:
        print("Usage: kinesis_wordcount.py <app-name> <stream-name> <endpoint-url> <region-name>",
              file=sys.stderr)
        sys.exit(2)
    appName, streamName, endpointUrl, regionName = sys.argv[1:]
    sc = SparkContext(appName="PythonStreamingKinesisWordCount")
    ssc = StreamingContext(sc, 1)

    lines = KinesisUtils.createStream(
        ssc, appName, streamName, endpointUrl, regionName,
        InitialPositionInStream.TRIM_HORIZON, 2)
    counts = lines.flatMap(lambda line: line.split(" ")) \
                  .map(lambda word: (word, 1)) \
                  .reduceByKey(lambda a, b: a + b)
    counts.pprint()

    ssc.start()
    ssc.awaitTermination()
