"""Running a frozen graph: one batch, its durability, and the threads that drive it."""
