"""Sources of structured queries: each says how far it has come, and gives what is between two."""
