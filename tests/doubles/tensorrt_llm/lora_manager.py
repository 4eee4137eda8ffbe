"""LoraConfig, where older documentation imports it from."""

from __future__ import annotations

from tensorrt_llm.lora_helper import LoraConfig

__all__ = ["LoraConfig"]
