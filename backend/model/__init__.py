"""Names to weights to a decoder: the only room that knows model files and architectures."""
