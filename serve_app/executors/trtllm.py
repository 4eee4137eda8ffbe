"""TensorRT-LLM itself, as its executor's other parts need it. The only importer of the package.

Owns the package's classes, their construction and the calls on LLM. Importing this module does not
import the package: a fleet may run without it.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from controllers.blocks import as_token_array
from controllers.errors import CachelaneError, SettingsError
from infra.settings_sections import ExecutorSettings
from serve_app.executors.base import GenerateRequest
from serve_app.executors.trtllm_answers import drained
from serve_app.executors.trtllm_config import EngineArguments, engine_arguments, warnings_of
from serve_app.executors.trtllm_errors import submit_error
from serve_app.executors.trtllm_features import Features, probe
from serve_app.executors.trtllm_model import ModelFacts
from serve_app.executors.trtllm_port import Handle
from serve_app.executors.trtllm_requests import salt_text
from serve_app.executors.trtllm_sampling import (
    NO_END_ID,
    engine_priority,
    retention_arguments,
    sampling_arguments,
)

logger = logging.getLogger(__name__)

PACKAGE = "tensorrt_llm"
HOW_TO_INSTALL = (
    "executor.kind 'trtllm' needs TensorRT-LLM, which is not installed here: `pip3 install "
    "tensorrt_llm` as NVIDIA's installation guide for TensorRT-LLM describes it (a GPU and its "
    "driver are needed), or run in NVIDIA's NGC container tensorrt-llm/release"
)


def is_installed() -> bool:
    """Without importing it, which takes many seconds."""
    return importlib.util.find_spec(PACKAGE) is not None


def check_installed() -> None:
    """Raises SettingsError that names the install command."""
    if not is_installed():
        raise SettingsError(HOW_TO_INSTALL)


def load_features() -> Features:
    """Imports the package. Raises SettingsError if it cannot be used."""
    check_installed()
    try:
        import tensorrt_llm
        from tensorrt_llm.llmapi import KvCacheConfig, SchedulerConfig, TorchLlmArgs
        from tensorrt_llm.sampling_params import SamplingParams
    except Exception as error:  # compiled libraries that do not fit raise anything
        raise SettingsError(
            f"TensorRT-LLM is installed but cannot be imported: {error!r}; its CUDA, PyTorch and "
            "driver versions must fit"
        ) from error
    return probe(
        tensorrt_llm.__version__,
        tensorrt_llm.LLM,
        TorchLlmArgs,
        KvCacheConfig,
        SchedulerConfig,
        SamplingParams,
    )


def open_engine(
    settings: ExecutorSettings, model_path: Path, facts: ModelFacts, eos_ids: Sequence[int]
) -> TrtllmEngine:
    """Imports the package and loads the model: minutes. Raises SettingsError."""
    features = load_features()
    arguments = engine_arguments(settings, str(model_path), facts, features)
    if arguments.left_out:
        logger.warning(
            "TensorRT-LLM %s has no %s: left out", features.version, ", ".join(arguments.left_out)
        )
    for warning in warnings_of(settings, features):
        logger.warning("%s", warning)
    return TrtllmEngine(
        arguments,
        features,
        eos_ids=eos_ids,
        loras=settings.trtllm.loras,
        has_retention=settings.trtllm.enable_retention and features.has_retention,
        vocab_size=facts.vocab_size,
    )


class TrtllmEngine:
    """See EnginePort. Made in a thread without an event loop; takes as long as loading a model.

    `loras`: adapter name -> folder; ids are given in the order of the names. `eos_ids` end
    sequences. Raises SettingsError for arguments that the engine refuses.
    """

    def __init__(
        self,
        arguments: EngineArguments,
        features: Features,
        *,
        eos_ids: Sequence[int],
        loras: Mapping[str, str],
        has_retention: bool,
        vocab_size: int,
    ) -> None:
        self._features = features
        self._eos_ids = tuple(eos_ids)
        self._vocab_size = vocab_size
        self._has_retention = has_retention
        self._num_dp_ranks = (
            arguments.llm["tensor_parallel_size"] if _has_attention_dp(arguments) else 1
        )
        self._name_to_lora = {
            name: (number, loras[name]) for number, name in enumerate(sorted(loras), start=1)
        }
        self._llm = _make_llm(arguments)

    @property
    def features(self) -> Features:
        return self._features

    def submit(self, request: GenerateRequest, index: int, num_resident_tokens: int) -> Handle:
        """See EnginePort."""
        try:
            handle: Handle = self._llm.generate_async(
                as_token_array(request.token_ids).tolist(),
                streaming=True,
                **self._call(request, index, num_resident_tokens),
            )
        except CachelaneError:
            raise
        except Exception as error:
            raise submit_error(error) from error
        return handle

    def submit_probe(
        self, token_ids: Sequence[int], retention_priority: int, duration_s: float
    ) -> Handle:
        """See EnginePort."""
        from tensorrt_llm import SamplingParams

        options: dict[str, Any] = {}
        if self._has_retention:
            options["kv_cache_retention_config"] = _retention_config(
                [(0, None, retention_priority, timedelta(seconds=duration_s))], 35, None
            )
        handle: Handle = self._llm.generate_async(
            list(token_ids),
            sampling_params=SamplingParams(
                max_tokens=1, end_id=NO_END_ID, pad_id=0, top_k=1, detokenize=False
            ),
            **options,
        )
        return handle

    def events(self) -> list[Mapping[str, Any] | None]:
        """See EnginePort."""
        return self._read(self._llm.get_kv_cache_events)

    def stats(self) -> list[Mapping[str, Any] | None]:
        """See EnginePort."""
        return self._read(self._llm.get_stats)

    def _read(self, getter: Callable[..., Any]) -> list[Mapping[str, Any] | None]:
        """Some orchestrators have no such getter: nothing is said then, which is noticed."""
        try:
            return drained(getter(timeout=0))
        except NotImplementedError:
            return []

    def capacity(self) -> Mapping[str, Any]:
        """See EnginePort."""
        if "get_kv_cache_capacity" not in self._features.llm_methods:
            return {}
        return self._llm.get_kv_cache_capacity() or {}

    def is_alive(self) -> bool:
        """True where the version cannot say it: silence is noticed anyway."""
        if "_check_health" not in self._features.llm_methods:
            return True
        return bool(self._llm._check_health())

    def salt_id(self, text: str) -> int | None:
        """See EnginePort."""
        try:
            from tensorrt_llm.inputs import get_cache_salt_id
        except ImportError:
            return None
        return int(get_cache_salt_id(text))

    def shutdown(self) -> None:
        """May never return, depending on the version."""
        self._llm.shutdown()

    def _call(
        self, request: GenerateRequest, index: int, num_resident_tokens: int
    ) -> dict[str, Any]:
        from tensorrt_llm import SamplingParams

        arguments = sampling_arguments(
            request, index, self._eos_ids, self._features.sampling_fields, self._bias
        )
        options: dict[str, Any] = {"sampling_params": SamplingParams(**arguments)}
        options.update(self._retention(request, num_resident_tokens))
        text = salt_text(request.salt)
        if text is not None:
            options["cache_salt"] = text
        if request.adapter is not None:
            options["lora_request"] = self._lora_request(request.adapter)
        if self._num_dp_ranks > 1:
            options["scheduling_params"] = _pinned_to(request.dp_rank)
        if self._features.has_priority:
            options["priority"] = engine_priority(request.service_rank)
        return options

    def _retention(self, request: GenerateRequest, num_resident_tokens: int) -> dict[str, Any]:
        """Where an `updated` event breaks the history, blocks that are there keep the priority
        they have."""
        if not self._has_retention:
            return {}
        num_left = 0 if self._features.has_safe_updates else num_resident_tokens
        given = retention_arguments(request.retention, len(request.token_ids) // 4, num_left)
        return {} if given is None else {"kv_cache_retention_config": _retention_config(*given)}

    def _lora_request(self, name: str) -> Any:
        from tensorrt_llm.executor import LoRARequest

        lora_id, path = self._name_to_lora[name]
        return LoRARequest(name, lora_id, path)

    def _bias(self, token_to_bias: Mapping[int, float]) -> object:
        """The engine takes one number for each token of the vocabulary."""
        import torch

        bias = torch.zeros(self._vocab_size, dtype=torch.float32)
        for token, value in token_to_bias.items():
            bias[token] = value
        return bias


def _make_llm(arguments: EngineArguments) -> Any:
    from tensorrt_llm import LLM
    from tensorrt_llm.llmapi import KvCacheConfig, SchedulerConfig

    try:
        options = dict(arguments.llm)
        model = options.pop("model")
        options["kv_cache_config"] = KvCacheConfig(**arguments.kv_cache)
        options["scheduler_config"] = SchedulerConfig(**arguments.scheduler)
        if arguments.lora is not None:
            from tensorrt_llm.lora_helper import LoraConfig

            options["lora_config"] = LoraConfig(**arguments.lora)
        return LLM(model, **options)
    except Exception as error:  # pydantic's, torch's, CUDA's, MPI's
        raise SettingsError(f"TensorRT-LLM did not start: {error}") from error


def _retention_config(ranges: Iterable[Sequence[Any]], *decode: Any) -> Any:
    from tensorrt_llm.llmapi import KvCacheRetentionConfig

    kind = KvCacheRetentionConfig.TokenRangeRetentionConfig
    return KvCacheRetentionConfig([kind(*given) for given in ranges], *decode)


def _pinned_to(dp_rank: int) -> Any:
    from tensorrt_llm.scheduling_params import SchedulingParams

    return SchedulingParams(attention_dp_rank=dp_rank, attention_dp_relax=False)


def _has_attention_dp(arguments: EngineArguments) -> bool:
    return bool(arguments.llm.get("enable_attention_dp"))
