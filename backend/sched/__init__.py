"""Who computes what in the next step. Pure Python over integers; never imports torch."""
