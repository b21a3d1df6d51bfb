"""What is known of the streams and queries of this process while they run: plain values."""
