"""Everything that turns a request into tokens: text, scheduling, the model and its attention."""
