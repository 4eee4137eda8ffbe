"""A small Hugging Face folder: a byte-level tokenizer with a chat template, and config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_hf_folder(folder: Path, **config: Any) -> Path:
    """One token for each byte and three control tokens: ids 256 to 258; 257 ends a reply."""
    folder.mkdir(parents=True, exist_ok=True)
    _tokenizer().save(str(folder / "tokenizer.json"))
    texts = {"eos_token": SPECIAL[1], "bos_token": None, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(texts), "utf-8")
    values = {"vocab_size": 259, "max_position_embeddings": 8192, "eos_token_id": 257, **config}
    (folder / "config.json").write_text(json.dumps(values), "utf-8")
    return folder


def _tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: at for at, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return tokenizer
