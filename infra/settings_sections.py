"""The sections of the settings file: every key, its type, bounds and default.

Knows nothing of files, the environment or what the settings do. Sections that a controller reads
are its own (`controllers.placement`, `controllers.retention`).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from controllers.rate_limits import TenantLimits
from infra.settings_trtllm import TrtllmSettings

Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
NotEmpty = Annotated[str, Meta(min_length=1)]
Port = Annotated[int, Meta(ge=0, le=65535)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section of the file."""


class ModelSettings(Section, frozen=True):
    # GGUF file; for TensorRT-LLM a Hugging Face folder; for the scripted executor either, whose
    # tokenizer it then uses. None: the default model, fetched once; none for the scripted executor.
    path: str | None = None
    name: str | None = None  # as clients say it; None: the model file's own name


class ScriptedSettings(Section, frozen=True):
    """The deterministic executor's pretended timing."""

    prefill_ms: Annotated[float, Meta(ge=0)] = 0.0  # fixed part of an iteration with new tokens
    prefill_ms_per_token: Annotated[float, Meta(ge=0)] = 0.0
    decode_ms: Annotated[float, Meta(ge=0)] = 0.0  # one iteration that only decodes
    # Failures for rehearsals: a prompt with the text makes the replica that runs it die, hang for
    # ever, or take `slow_factor` times as long from then on.
    die_on: NotEmpty | None = None
    hang_on: NotEmpty | None = None
    slow_on: NotEmpty | None = None
    slow_factor: Annotated[float, Meta(ge=1)] = 10.0


class ExecutorSettings(Section, frozen=True):
    kind: Literal["local", "scripted", "trtllm"] = "local"
    num_replicas: Positive = 2
    block_size: Positive = 32  # tokens
    num_gpu_blocks: Positive = 512  # the first medium; main memory when the engine runs on a CPU
    num_host_blocks: NonNegative = 0  # second medium; 0: off
    max_seq_len: Positive | None = None  # None: what the model and the cache allow
    max_batch_size: Positive = 16  # sequences that run together
    max_batched_tokens: Positive = 512  # tokens of one iteration
    max_waiting_requests: Positive = 1000  # at one replica's gate; more is refused with 503
    max_waiting_tokens: Positive | None = None  # their uncached tokens; None: any
    # Places of the batch that better ranks may keep free, as far as they have needed them lately.
    max_kept_share: Annotated[float, Meta(ge=0, le=1)] = 0.5
    host_offload_min_retention_priority: Annotated[int, Meta(ge=0, le=100)] = 30
    num_threads: Positive = 1  # BLAS threads of one engine
    event_buffer_size: Positive = 65536  # events
    profiling: Literal["off", "nsys"] = "off"  # nsys: start replicas so that it can trace them
    num_cpus: Annotated[float, Meta(ge=0)] = 0.0  # Ray resources of one replica
    num_gpus: Annotated[float, Meta(ge=0)] | None = None  # None: as many as the executor needs
    scripted: ScriptedSettings = ScriptedSettings()
    trtllm: TrtllmSettings = TrtllmSettings()


class KafkaSecurity(Section, frozen=True, omit_defaults=True):
    """How clients connect; the plain values hold only what is set, so that they can be passed on.

    None: as the clients do by themselves.
    """

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] | None = None
    ssl_check_hostname: bool | None = None
    ssl_cafile: NotEmpty | None = None
    ssl_certfile: NotEmpty | None = None
    ssl_keyfile: NotEmpty | None = None
    ssl_password: NotEmpty | None = None
    ssl_crlfile: NotEmpty | None = None
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    sasl_plain_username: NotEmpty | None = None
    sasl_plain_password: NotEmpty | None = None


class KafkaSettings(Section, frozen=True):
    bootstrap_servers: str | None = None  # None: the embedded broker
    topic_prefix: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,100}$")] = "cachelane"
    num_partitions: Positive = 12
    replication_factor: Positive = 1
    events_retention_s: Seconds = 21600.0
    decisions_retention_s: Seconds = 86400.0
    bookings_retention_s: Seconds = 600.0
    uses_retention_s: Seconds = 1800.0
    # Readers ask for twice as much at once, which their client takes up to 1e9.
    max_record_bytes: Annotated[int, Meta(ge=10_000, le=100_000_000)] = 1_000_000
    security: KafkaSecurity = KafkaSecurity()


class EventSettings(Section, frozen=True):
    """How a replica publishes what its cache holds."""

    linger_s: Annotated[float, Meta(ge=0, le=0.02)] = 0.002  # after a first event, for more
    drain_interval_s: Annotated[float, Meta(gt=0, le=0.02)] = 0.005  # between two records at least
    max_events_per_record: Positive = 256
    load_interval_s: Seconds = 0.5
    snapshot_interval_s: Seconds = 60.0
    snapshot_after_blocks: Positive = 50_000  # blocks changed
    heartbeat_timeout_s: Seconds = 3.0  # a silent worker is stale after this
    ready_timeout_s: Seconds = 10.0  # an ingress serves after this even without every snapshot


class TenantSettings(Section, frozen=True):
    """`salt` None: shares blocks with other tenants without a salt."""

    api_keys: list[NotEmpty] = []
    salt: NotEmpty | None = None
    max_retention_priority: Annotated[int, Meta(ge=0, le=100)] = 100
    default_request_type: str | None = None
    limits: TenantLimits = TenantLimits()


class FailoverSettings(Section, frozen=True):
    """What happens to a request whose worker fails."""

    # Workers it may be tried on, the first one included. What fails twice may be the request's own
    # doing, and would take down one worker after the other; one that is full is not counted.
    max_attempts: Positive = 2
    resume_streams: bool = True  # go on elsewhere in mid-stream; False: the client gets an error


class HttpSettings(Section, frozen=True):
    host: str = "127.0.0.1"
    port: Port = 8000
    num_ingress: Positive = 1
    # Several of them tell each other what they have sent. At least so long between two records of
    # one; less is fresher and takes more CPU time.
    bookings_linger_s: Annotated[float, Meta(ge=0, le=0.1)] = 0.01
    num_cpus: Annotated[float, Meta(ge=0)] = 0.0  # Ray resources of one ingress replica
    max_body_bytes: Positive = 8_000_000
    max_ongoing_requests: Positive = 1000  # of one ingress replica
    request_timeout_s: Seconds | None = None


class GrpcSettings(Section, frozen=True):
    """Every ingress replica of a node listens on the same port."""

    enabled: bool = False
    host: str = "127.0.0.1"
    port: Port = 8001
    max_message_bytes: Positive = 8_000_000  # of a request
    max_ongoing_requests: Positive = 1000  # of one ingress replica
