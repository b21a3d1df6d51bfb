"""What runs, as numbers for monitoring systems."""
