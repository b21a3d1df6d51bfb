"""The live page of what runs in this process, and the server that it comes from."""
