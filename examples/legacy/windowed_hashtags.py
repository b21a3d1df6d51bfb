"""
 Counts the hashtags of the last minute, in text files that appear in a directory.

 Usage: windowed_hashtags.py <directory> [<window-seconds>]
   <directory> is watched for new files, which must be moved there; a line is a message
   <window-seconds> length of the window, 60 by default

 Every two seconds the hashtags are printed, the most frequent ones first.
"""
from __future__ import print_function

import re
import sys
import tempfile

from pyspark import SparkContext
from pyspark.streaming import StreamingContext

if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        print("Usage: windowed_hashtags.py <directory> [<window-seconds>]", file=sys.stderr)
        sys.exit(2)
    window = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    sc = SparkContext("local[2]", "WindowedHashtags")
    ssc = StreamingContext(sc, 1)
    # required by windows that subtract what leaves them
    ssc.checkpoint(tempfile.mkdtemp())

    messages = ssc.textFileStream(sys.argv[1])
    hashtags = messages.flatMap(lambda message: re.findall(r"#\w+", message.lower()))
    counts = hashtags.map(lambda tag: (tag, 1)).reduceByKeyAndWindow(
        lambda a, b: a + b,
        lambda a, b: a - b,
        window,
        2,
        filterFunc=lambda pair: pair[1] > 0)
    counts.transform(lambda rdd: rdd.sortBy(lambda pair: (-pair[1], pair[0]))).pprint(5)

    ssc.start()
    ssc.awaitTermination()
    sc.stop()
