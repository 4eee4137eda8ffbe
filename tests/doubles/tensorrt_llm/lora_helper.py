"""LoRA as an argument of LLM."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class LoraConfig:
    """Which adapters an engine is prepared for."""

    lora_dir: list[str] = field(default_factory=list)
    lora_ckpt_source: str = "hf"
    max_lora_rank: int = 64
    lora_target_modules: list[str] = field(default_factory=list)
    trtllm_modules_to_hf_modules: dict[str, str] = field(default_factory=dict)
    max_loras: int | None = None
    max_cpu_loras: int | None = None
    swap_gate_up_proj_lora_b_weight: bool = True
