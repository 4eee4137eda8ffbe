"""Helpers for prompts."""

from __future__ import annotations

from tensorrt_llm.inputs.utils import get_cache_salt_id

__all__ = ["get_cache_salt_id"]
