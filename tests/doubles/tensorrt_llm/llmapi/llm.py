"""LLM, as its users call it: one class for 1.2, one for 1.3 and later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorrt_llm.bindings.executor import KvCacheRetentionConfig
from tensorrt_llm.double import registry
from tensorrt_llm.double.core import Call, Core
from tensorrt_llm.double.faults import Faults
from tensorrt_llm.double.settings import current
from tensorrt_llm.executor.request import LoRARequest
from tensorrt_llm.executor.result import IterationResult, RequestOutput
from tensorrt_llm.llmapi.checks import check_arguments, prepared, prompt_of
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs
from tensorrt_llm.llmapi.tokenizer import ByteTokenizer
from tensorrt_llm.sampling_params import SamplingParams
from tensorrt_llm.scheduling_params import SchedulingParams


class BaseLLM:
    """What does not depend on the version."""

    def __init__(
        self,
        model: str | Path,
        tokenizer: Any = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._executor: Core | None = None
        self.args = TorchLlmArgs(
            model=model,
            tokenizer=tokenizer,
            tokenizer_mode=tokenizer_mode,  # type: ignore[arg-type]
            skip_tokenizer_init=skip_tokenizer_init,
            trust_remote_code=trust_remote_code,
            tensor_parallel_size=tensor_parallel_size,
            dtype=dtype,
            revision=revision,
            tokenizer_revision=tokenizer_revision,
            **kwargs,
        )
        settings = current()
        self._iterator_end = settings.iterator_end or settings.parsed.iterator_end
        self.tokenizer = None if skip_tokenizer_init else ByteTokenizer(settings.eos_id)
        decode = None if self.tokenizer is None else self.tokenizer.decode
        self._executor = Core(self.args, settings, decode)
        registry.remember(self)

    @property
    def faults(self) -> Faults:
        """Not in the real class."""
        return self._core().faults

    def generate(
        self,
        inputs: Any,
        sampling_params: SamplingParams | list[SamplingParams] | None = None,
        use_tqdm: bool = True,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        kv_cache_retention_config: Any = None,
        disaggregated_params: Any = None,
        scheduling_params: Any = None,
        cache_salt: Any = None,
    ) -> RequestOutput | list[RequestOutput]:
        """One prompt, or a list of prompts with one argument for all or one for each."""
        is_single = isinstance(inputs, (str, dict)) or (
            isinstance(inputs, list) and all(isinstance(item, int) for item in inputs)
        )
        prompts = [inputs] if is_single else list(inputs)
        outputs = [
            self._submit(
                prompt,
                _item(sampling_params, at),
                lora_request=_item(lora_request, at),
                kv_cache_retention_config=_item(kv_cache_retention_config, at),
                scheduling_params=_item(scheduling_params, at),
                cache_salt=_item(cache_salt, at),
            )
            for at, prompt in enumerate(prompts)
        ]
        for output in outputs:
            output.result()
        return outputs[0] if is_single else outputs

    def get_kv_cache_events(self, timeout: float | None = 2) -> list[Any]:
        """Destroys what it returns; waits up to `timeout` seconds for one. Any error: []."""
        return [] if self._executor is None else self._executor.get_events(timeout)

    def get_kv_cache_events_async(self, timeout: float | None = 2) -> IterationResult:
        """Blocks its caller as long as the other one, and only then returns the iterator."""
        return IterationResult(self.get_kv_cache_events(timeout), self._iterator_end)

    def get_stats(self, timeout: float | None = 2) -> list[Any]:
        """As get_kv_cache_events; [] without enable_iter_perf_stats."""
        return [] if self._executor is None else self._executor.get_stats(timeout)

    def get_stats_async(self, timeout: float | None = 2) -> IterationResult:
        return IterationResult(self.get_stats(timeout), self._iterator_end)

    def shutdown(self) -> None:
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
        registry.forget(self)

    def __enter__(self) -> BaseLLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __getstate__(self) -> None:
        raise RuntimeError("LLM object can not be pickled.")

    def _check_health(self) -> bool:
        return self._executor is not None and self._executor.is_healthy()

    def _core(self) -> Core:
        if self._executor is None or self._executor.is_shutdown():
            raise RuntimeError("LLM is shutting down")
        return self._executor

    def _submit(
        self,
        inputs: Any,
        sampling_params: SamplingParams | None,
        *,
        streaming: bool = False,
        lora_request: LoRARequest | None = None,
        kv_cache_retention_config: KvCacheRetentionConfig | None = None,
        scheduling_params: SchedulingParams | None = None,
        cache_salt: str | None = None,
        disaggregated_params: Any = None,
        priority: float = 0.5,
    ) -> RequestOutput:
        core = self._core()
        if disaggregated_params is not None:
            raise NotImplementedError("the double serves no disaggregated requests")
        sampling = prepared(sampling_params, self.tokenizer)
        prompt, token_ids = prompt_of(inputs, self.tokenizer)
        check_arguments(self.args, core.shape, len(token_ids), sampling)
        return core.submit(
            Call(
                prompt=prompt,
                token_ids=token_ids,
                sampling=sampling,
                is_streaming=streaming,
                retention=kv_cache_retention_config,
                lora=lora_request,
                scheduling=scheduling_params,
                cache_salt=cache_salt,
                priority=priority,
            )
        )


class LLM12(BaseLLM):
    """1.2."""

    def generate_async(
        self,
        inputs: Any,
        sampling_params: SamplingParams | None = None,
        lora_request: LoRARequest | None = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: KvCacheRetentionConfig | None = None,
        disaggregated_params: Any = None,
        trace_headers: dict[str, str] | None = None,
        _postproc_params: Any = None,
        scheduling_params: SchedulingParams | None = None,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        """One prompt. Returns at once; to be awaited it must be called on a running loop."""
        return self._submit(
            inputs,
            sampling_params,
            streaming=streaming,
            lora_request=lora_request,
            kv_cache_retention_config=kv_cache_retention_config,
            scheduling_params=scheduling_params,
            cache_salt=cache_salt,
            disaggregated_params=disaggregated_params,
        )


class LLM13(BaseLLM):
    """1.3 and later."""

    def generate_async(
        self,
        inputs: Any,
        sampling_params: SamplingParams | None = None,
        lora_request: LoRARequest | None = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: KvCacheRetentionConfig | None = None,
        disaggregated_params: Any = None,
        trace_headers: dict[str, str] | None = None,
        _postproc_params: Any = None,
        scheduling_params: SchedulingParams | None = None,
        conversation_params: Any = None,
        cache_salt: str | None = None,
        priority: float = 0.5,
    ) -> RequestOutput:
        """One prompt. Returns at once; to be awaited it must be called on a running loop."""
        if not 0 <= priority <= 1:
            raise ValueError(f"priority must be in [0, 1], got {priority}")
        return self._submit(
            inputs,
            sampling_params,
            streaming=streaming,
            lora_request=lora_request,
            kv_cache_retention_config=kv_cache_retention_config,
            scheduling_params=scheduling_params,
            cache_salt=cache_salt,
            disaggregated_params=disaggregated_params,
            priority=priority,
        )

    def get_kv_cache_capacity(self) -> dict[str, int]:
        """Of the GPU."""
        shape = self._core().shape
        return {
            "maxNumBlocks": shape.num_gpu_blocks,
            "tokensPerBlock": shape.block_size,
            "maxNumTokens": shape.num_gpu_blocks * shape.block_size,
        }


def llm_class() -> type[BaseLLM]:
    return LLM13 if current().parsed.is_new else LLM12


def _item(value: Any, at: int) -> Any:
    return value[at] if isinstance(value, list) else value
