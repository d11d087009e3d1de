"""A tokenizer made in memory in milliseconds: 256 byte tokens, three control tokens, ChatML.

Id b is byte b. The template is SmolLM2's in shape: it puts a default system message in front where
the first role is not system.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from branchwork.backend.text.chat import ChatFormat
from branchwork.backend.text.folder import Facts
from branchwork.backend.text.tokenizer import Tokenizer

IM_START, IM_END, ENDOFTEXT = 256, 257, 258
VOCAB_SIZE = 259
SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NAMES = {"bos_token": SPECIALS[0], "eos_token": SPECIALS[1], "pad_token": SPECIALS[1]}


def byte_chars() -> list[str]:
    """The character by which byte-level vocabularies spell byte b, at index b."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = (b for b in range(256) if b not in shown)
    spelling = {b: chr(b) for b in shown} | {b: chr(256 + n) for n, b in enumerate(hidden)}
    return [spelling[b] for b in range(256)]


def byte_library(specials: tuple[str, ...] = SPECIALS, words: tuple[str, ...] = ()) -> Library:
    """Byte tokens, then `specials` (ids from 256 on), then whole `words` built by merges."""
    chars = byte_chars()
    vocab = {char: b for b, char in enumerate(chars)}
    vocab |= {text: 256 + n for n, text in enumerate(specials)}
    merges: list[tuple[str, str]] = []
    for word in words:
        spelt = [chars[b] for b in word.encode()]
        for n in range(1, len(spelt)):
            left, right = "".join(spelt[:n]), spelt[n]
            if left + right not in vocab:
                vocab[left + right] = len(vocab)
                merges.append((left, right))
    library = Library(models.BPE(vocab=vocab, merges=merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in specials]
    )
    return library


def make(
    template: str | None = CHATML, words: tuple[str, ...] = (), adds_bos: bool = False
) -> Tokenizer:
    """A new tokenizer; `words` become single tokens (and so do their prefixes)."""
    facts = Facts(names=NAMES, adds_bos=adds_bos, chat_template=template)
    return Tokenizer(byte_library(words=words), facts)


@cache
def byte_tokenizer() -> Tokenizer:
    """The plain one, shared: it is immutable."""
    return make()


def chat_format(tokenizer: Tokenizer | None = None) -> ChatFormat:
    return ChatFormat.of(tokenizer or byte_tokenizer())


def save(folder: Path, template: str | None = CHATML) -> Path:
    """Write the files `Tokenizer.load` reads; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    byte_library().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(NAMES | {"add_bos_token": False}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
