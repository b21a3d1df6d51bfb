"""What a user's state function sees."""
