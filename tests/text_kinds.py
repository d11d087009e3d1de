"""Tokenizers of every kind that treats the start of a text in its own way, small and in memory."""

from __future__ import annotations

from byte_tokenizer import byte_library
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from branchwork.backend.text.folder import Facts
from branchwork.backend.text.tokenizer import Tokenizer

CONTROL = ("<s>", "</s>", "<|a|>", "<|a|>b")
WORDS = ("the", " the", "\n\n", "\nthe", " cat", "12", "  ")


def sentencepiece_like(stage: str) -> Library:
    """Characters and a few words with "▁" for space and byte fallback, as Llama's and Gemma's."""
    chars = [f"<0x{b:02X}>" for b in range(256)] + sorted(set("▁the ca12\n<|>/sabx"))
    vocab = {text: n for n, text in enumerate([*CONTROL, "<unk>", *chars])}
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "▁")]
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    model = models.BPE(
        vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True
    )
    library = Library(model)
    if stage == "prepend":
        parts = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        library.normalizer = normalizers.Sequence(parts)
    else:
        library.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=stage, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    library.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    return library


def library_of(kind: str) -> Library:
    if kind == "byte-level":
        return byte_library(CONTROL, WORDS)
    if kind == "stripping":
        library = byte_library((), WORDS)
        library.add_special_tokens(
            [AddedToken(t, special=True, normalized=False, rstrip=True) for t in CONTROL]
        )
        return library
    return sentencepiece_like(kind)


KINDS = ("byte-level", "stripping", "first", "always", "never", "prepend")
PLAIN_LIBRARIES = {kind: library_of(kind) for kind in KINDS}
TOKENIZERS = {
    kind: Tokenizer(library_of(kind), Facts(names={"bos_token": "<s>", "eos_token": "</s>"}))
    for kind in KINDS
}
