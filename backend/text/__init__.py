"""Between characters and token ids: tokenizer, chat template, detokeniser, stop strings."""
