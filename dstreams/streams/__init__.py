"""Running a frozen graph: one batch, its parts, and the threads that drive it."""
