"""The write-ahead log of a stream: begin and commit records, fencing, recovery, retention."""
