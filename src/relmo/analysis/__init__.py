"""What the layers of a model hold."""
