"""The stateful network word count of ``dstreams demo``.

Text travels over a real TCP socket into a stream that counts its words, and what the stream
counted is compared with a count of the same text that Spark had no part in.
"""
