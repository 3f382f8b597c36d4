"""Text to vectors, and vectors to files."""
