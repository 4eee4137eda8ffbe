"""A memory plan for people: where the memory goes, what fits, other cache formats, warnings."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from controllers.memory_plan_types import ComparedDtype, Plan, Pool
from serve_app.byte_sizes import format_size

WEIGHT_SOURCES = {"files": "size of the files", "parameters": "counted from the shape"}


def render(plan: Plan) -> RenderableType:
    """Of a plan that fits."""
    return Group(
        Text(_title(plan), "bold"),
        _rows("memory of one GPU", _memory_rows(plan)),
        _rows("KV cache", _cache_rows(plan)),
        *([_pool_table(plan.pools)] if len(plan.pools) > 1 else []),
        _rows("recommended", _recommended_rows(plan)),
        _comparison(plan.comparison, plan.sequence_length),
        *(Text(f"warning: {warning}", "yellow") for warning in plan.warnings),
        *(Text(f"assumed: {assumption}", "dim") for assumption in plan.assumptions),
    )


def _title(plan: Plan) -> str:
    parts = [
        plan.model,
        f"{plan.num_parameters / 1e9:.2f} B parameters",
        f"{plan.kv_dtype} cache",
        f"{plan.block_size} tokens a block",
        *([f"tensor parallel {plan.tensor_parallel}"] if plan.tensor_parallel > 1 else []),
        *([f"pipeline parallel {plan.pipeline_parallel}"] if plan.pipeline_parallel > 1 else []),
    ]
    return " · ".join(parts)


def _rows(title: str, rows: Iterable[tuple[str, str]]) -> RenderableType:
    table = Table.grid(padding=(0, 3, 0, 2))
    for name, value in rows:
        table.add_row(name, value)
    return Padding(Group(Text(title, "bold"), table), (1, 0, 0, 0), expand=False)


def _memory_rows(plan: Plan) -> list[tuple[str, str]]:
    source = f"{plan.weight_dtype}, {WEIGHT_SOURCES[plan.weight_source]}"
    percent = f"{100 * plan.free_gpu_memory_fraction:g} % of what is free"
    return [
        ("all", format_size(plan.gpu_memory_bytes)),
        ("weights", f"{format_size(plan.weight_bytes_per_gpu)} ({source})"),
        ("activations", f"{format_size(plan.activation_reserve_bytes)}"),
        ("free", format_size(plan.free_bytes)),
        ("KV cache", f"{format_size(plan.kv_cache_bytes)} ({percent})"),
    ]


def _cache_rows(plan: Plan) -> list[tuple[str, str]]:
    return [
        ("a token", _per_gpu(plan, plan.kv_bytes_per_token, plan.kv_bytes_per_token_per_gpu)),
        ("a block", _per_gpu(plan, plan.kv_bytes_per_block, plan.kv_bytes_per_block_per_gpu)),
        ("GPU", _blocks(plan.gpu_blocks, plan.gpu_tokens)),
        *([("host", _blocks(plan.host_blocks, plan.host_tokens))] if plan.host_blocks else []),
        (f"sequences of {plan.sequence_length:,}", f"{plan.max_concurrent_sequences:,}"),
        (
            f"sequences of {plan.max_seq_len:,}",
            f"{plan.max_concurrent_sequences_at_max_seq_len:,}",
        ),
    ]


def _per_gpu(plan: Plan, all_layers: int, per_gpu: int) -> str:
    text = format_size(all_layers)
    is_split = plan.tensor_parallel * plan.pipeline_parallel > 1
    return f"{text}, {format_size(per_gpu)} of it on a GPU" if is_split else text


def _blocks(num_blocks: int, num_tokens: int) -> str:
    return f"{num_blocks:,} blocks, {num_tokens:,} tokens"


def _recommended_rows(plan: Plan) -> list[tuple[str, str]]:
    windows = plan.max_attention_window
    host = plan.host_cache_size_bytes
    return [
        ("free_gpu_memory_fraction", f"{plan.recommended_free_gpu_memory_fraction:g}"),
        ("max_seq_len", f"{plan.recommended_max_seq_len}"),
        *([("max_attention_window", str(windows))] if windows else []),
        *([("window shares", _shares(plan))] if plan.recommended_window_shares else []),
        *([("host_cache_size", f"{host} bytes a rank")] if host else []),
    ]


def _shares(plan: Plan) -> str:
    return ",".join(f"{share:g}" for share in plan.recommended_window_shares or ())


def _table(title: str, left: Iterable[str], right: Iterable[str], last: str = "") -> Table:
    table = Table(box=None, padding=(0, 3, 0, 2), header_style="dim", pad_edge=False)
    table.title, table.title_justify, table.title_style = title, "left", "bold"
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    if last:
        table.add_column(last)
    return table


def _pool_table(pools: list[Pool]) -> RenderableType:
    table = _table("blocks by attention window", ["window"], ["layers", "a token", "GPU", "host"])
    for pool in pools:
        window = "all" if pool.window is None else f"{pool.window:,}"
        per_token = format_size(pool.kv_bytes_per_token)
        counts = (f"{pool.gpu_blocks:,}", f"{pool.host_blocks:,}")
        table.add_row(window, str(pool.num_layers), per_token, *counts)
    return Padding(table, (1, 0, 0, 0), expand=False)


def _comparison(rows: list[ComparedDtype], length: int) -> RenderableType:
    title = f"cache formats, sequences of {length:,} tokens"
    columns = ["a token", "tokens", "sequences", "times"]
    table = _table(title, ["format"], columns, "needs")
    for row in rows:
        table.add_row(
            row.kv_dtype,
            format_size(row.kv_bytes_per_token),
            f"{row.gpu_tokens:,}",
            f"{row.max_concurrent_sequences:,}",
            f"{row.times_tokens:g}",
            row.needs,
        )
    return Padding(table, (1, 0, 1, 0), expand=False)
