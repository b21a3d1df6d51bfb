"""What streams and structured queries both stand on."""
