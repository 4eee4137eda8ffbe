"""The executor that runs a model with TensorRT-LLM.

Puts the parts together: the engine, the thread that reads it, the requests on the event loop, the
ranks' histories. Owns start, death and end; see docs/trtllm.md.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence

from controllers.blocks import as_token_array
from controllers.errors import ExecutorDead, RequestAborted, SettingsError
from controllers.events import Event, Load
from infra.settings_sections import ExecutorSettings
from serve_app.executors.base import ExecutorInfo, GenerateRequest, TokenChunk
from serve_app.executors.engine_info import idle_load
from serve_app.executors.loop_calls import call_on
from serve_app.executors.request_checks import check_request
from serve_app.executors.streams import Streams
from serve_app.executors.trtllm_books import Books, EngineSequence
from serve_app.executors.trtllm_config import max_seq_len_of
from serve_app.executors.trtllm_load import load_of
from serve_app.executors.trtllm_model import ModelFacts
from serve_app.executors.trtllm_port import EnginePort
from serve_app.executors.trtllm_probe import Findings, probe_tokens
from serve_app.executors.trtllm_ranks import Ranks
from serve_app.executors.trtllm_requests import Label, Namespace, Prompt, Requests
from serve_app.executors.trtllm_runs import Runs
from serve_app.executors.trtllm_thread import PollThread

logger = logging.getLogger(__name__)


class TrtllmExecutor:
    """`open_engine` is called once, in a thread. Raises what it raises, SettingsError when the
    engine does not keep what `require_retention` demands, ExecutorDead when it does not answer."""

    def __init__(
        self,
        settings: ExecutorSettings,
        facts: ModelFacts,
        open_engine: Callable[[], EnginePort],
        *,
        eos_ids: Sequence[int],
        model_name: str | None = None,
    ) -> None:
        trtllm = settings.trtllm
        self._settings = settings
        self._facts = facts
        self._streams = Streams()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: EnginePort | None = None
        self._is_closed = False
        self._lora_ids = {name: at for at, name in enumerate(sorted(trtllm.loras), start=1)}
        self._requests = Requests(settings.block_size, self._salt_id)
        self._ranks = Ranks(
            trtllm.num_dp_ranks, settings.block_size, self._requests, settings.event_buffer_size
        )
        self._books = Books(settings.max_batch_size, settings.block_size)
        self._thread = PollThread(
            open_engine,
            self._ranks,
            self._books,
            block_size=settings.block_size,
            poll_interval_s=trtllm.poll_interval_s,
            hang_timeout_s=trtllm.hang_timeout_s,
            on_death=self._die,
        )
        try:
            self._start(eos_ids, model_name)
        except BaseException:
            self.close()
            raise

    def _start(self, eos_ids: Sequence[int], model_name: str | None) -> None:
        settings, trtllm = self._settings, self._settings.trtllm
        self._engine = engine = self._thread.wait_loaded()
        max_seq_len = max_seq_len_of(settings, self._facts)
        tokens = probe_tokens(settings.block_size, self._facts.vocab_size, max_seq_len)
        findings = self._thread.probe(tokens, trtllm.start_timeout_s)
        self._requests.has_known_hashes = findings.has_known_hashes
        features = _features_of(engine, findings, settings)
        _judge(features, settings)
        num_blocks = self._num_blocks()
        self._info = ExecutorInfo(
            name="trtllm",
            version=engine.features.version,
            model=model_name or self._facts.name,
            block_size=settings.block_size,
            num_blocks=num_blocks,
            max_seq_len=min(max_seq_len, num_blocks["gpu"] * settings.block_size),
            max_batch_size=settings.max_batch_size,
            max_batched_tokens=settings.max_batched_tokens,
            num_dp_ranks=trtllm.num_dp_ranks,
            features=features,
        )
        self._runs = Runs(
            engine,
            self._streams,
            self._books,
            block_size=settings.block_size,
            eos_ids=eos_ids,
            abort_timeout_s=trtllm.abort_timeout_s,
            overlap=lambda hashes, rank: self._ranks[rank].translator.overlap(hashes),
            on_start=self._on_start,
            on_reuse=self._on_reuse,
            on_end=self._on_end,
            on_death=self._die,
        )

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        """See Executor."""
        return self._streams.run(request, self._submit, self._runs.withdraw)

    def abort(self, request_id: str) -> None:
        """See Executor."""
        call_on(self._loop, self._streams.abort, request_id)

    def drain_events(self, timeout_s: float, dp_rank: int = 0) -> list[Event]:
        """See Executor."""
        return self._ranks[dp_rank].buffer.drain(timeout_s)

    def load(self, dp_rank: int = 0) -> Load:
        """See Executor."""
        if self._streams.is_ended:
            return idle_load(self._info)
        return load_of(self._ranks[dp_rank], self._books, self._info, dp_rank)

    def check_health(self) -> None:
        """See Executor."""
        if self._streams.death is not None:
            raise ExecutorDead(*self._streams.death.args)
        if self._is_closed:
            return
        try:
            self._thread.check()
        except ExecutorDead as error:
            self._die(error)
            raise

    def close(self) -> None:
        """See Executor. Returns within `close_timeout_s` even if the engine does not."""
        if self._is_closed:
            return
        self._is_closed = True
        self._end(RequestAborted("the executor was closed"))
        timeout_s = self._settings.trtllm.close_timeout_s / 2
        if not self._thread.stop(timeout_s):
            logger.error("TensorRT-LLM has not answered a call for %g s", timeout_s)
        if self._engine is not None:
            _bounded(self._engine.shutdown, timeout_s)

    def _submit(self, request: GenerateRequest) -> None:
        check_request(
            request,
            self._facts.vocab_size,
            self._info.max_seq_len,
            num_dp_ranks=self._info.num_dp_ranks,
            adapters=self._lora_ids,
        )
        self._loop = asyncio.get_running_loop()
        self._runs.start(request)
        self._thread.wake()

    def _on_start(self, request: GenerateRequest, hashes: Sequence[int]) -> None:
        self._requests.add(
            request.request_id,
            as_token_array(request.token_ids),
            hashes,
            self._namespace_of(request),
            Label(request.tier, request.tenant),
        )

    def _on_reuse(self, seq: EngineSequence, num_cached_tokens: int) -> None:
        """The last token of a prompt is always computed, so the block it ends says nothing."""
        num_judged = (seq.num_prompt_tokens - 1) // self._settings.block_size
        self._thread.note_reuse(
            seq.request.dp_rank,
            seq.hashes[:num_judged],
            num_cached_tokens,
            seq.submitted_at,
            Prompt(seq.request.token_ids, self._namespace_of(seq.request)),
        )

    def _namespace_of(self, request: GenerateRequest) -> Namespace:
        adapter = request.adapter
        return Namespace(request.salt, None if adapter is None else self._lora_ids[adapter])

    def _on_end(self, key: str) -> None:
        self._requests.end(key)
        self._thread.wake()

    def _salt_id(self, text: str) -> int | None:
        return None if self._engine is None else self._engine.salt_id(text)

    def _num_blocks(self) -> dict[str, int]:
        """As the engine says it, as its first event says it, or as was asked for."""
        told = self._ranks[0].translator.num_blocks
        gpu = self._thread.capacity.get("maxNumBlocks") or told.get("gpu")
        max_tokens = self._settings.trtllm.max_tokens
        if not gpu and max_tokens is None:
            raise SettingsError(
                "executor.trtllm.max_tokens: must be given, this TensorRT-LLM does not say how "
                "large its KV cache is"
            )
        gpu = gpu or (max_tokens or 0) // self._settings.block_size
        return {"gpu": int(gpu), "host": told.get("host", 0)}

    def _die(self, error: ExecutorDead) -> None:
        if not self._streams.is_ended:
            logger.error("%s", error)
        self._end(error)

    def _end(self, error: ExecutorDead | RequestAborted) -> None:
        self._streams.end(error)
        self._ranks.close()
        call_on(self._loop, self._fail_all)

    def _fail_all(self) -> None:
        self._streams.fail_all()
        if hasattr(self, "_runs"):
            self._runs.cancel_all()


def _features_of(
    engine: EnginePort, findings: Findings, settings: ExecutorSettings
) -> dict[str, bool]:
    """By name, what works; seen, not read in a manual, where it can be seen."""
    trtllm, features = settings.trtllm, engine.features
    has_queue_order = trtllm.waiting_queue_policy != "fcfs" and features.has_priority
    return {
        "events": findings.has_events,
        "retention": trtllm.enable_retention and findings.has_retention,
        "retention_of_cached_blocks": features.has_safe_updates,
        "salt_in_events": findings.has_salt_in_events,
        "known_hashes": findings.has_known_hashes,
        "service_ranks": has_queue_order,
        "adapters": bool(trtllm.loras),
    }


def _judge(features: dict[str, bool], settings: ExecutorSettings) -> None:
    """Says what is off. Raises SettingsError for what must not be."""
    trtllm = settings.trtllm
    if trtllm.require_retention and not features["retention"]:
        raise SettingsError(
            "executor.trtllm.require_retention: TensorRT-LLM did not keep a block with the "
            f"retention priority it was told (cache events: {_on_off(features['events'])})"
        )
    if trtllm.enable_retention and not features["retention"]:
        logger.error("TensorRT-LLM ignores retention: all blocks have the engine's own priority")
    if not features["events"]:
        logger.error("TensorRT-LLM tells nothing of its cache: requests are not routed by it")
    logger.info("TensorRT-LLM: %s", ", ".join(f"{k} {_on_off(v)}" for k, v in features.items()))


def _on_off(value: bool) -> str:
    return "on" if value else "off"


def _bounded(call: Callable[[], None], timeout_s: float) -> None:
    """In a thread that is left behind if it does not come back."""

    def run() -> None:
        try:
            call()
        except Exception:
            logger.exception("TensorRT-LLM failed while it shut down")

    thread = threading.Thread(target=run, name="trtllm-shutdown", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        logger.error("TensorRT-LLM did not shut down within %g s", timeout_s)
