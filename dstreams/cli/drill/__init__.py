"""``dstreams drill``: kills a driver repeatedly, and compares its outputs with an oracle."""
