"""Files that are created once and durable: local, object stores, framing, signing, trust."""
