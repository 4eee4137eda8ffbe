"""Weights of a Hugging Face folder as they lie there: their format and their exact size.

Reads headers and sizes of files, no tensor. Knows the quantisation configs that checkpoints carry.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from controllers.errors import ModelFileError
from serve_app.config_keys import ConfigKeys

INDEX = "model.safetensors.index.json"
MODELOPT = "hf_quant_config.json"
TORCH_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
# quant_method -> format, where the method alone says it.
METHODS = {"fp8": "fp8", "fbgemm_fp8": "fp8", "awq": "int4", "mxfp4": "mxfp4"}
BITS = {4: "int4", 8: "int8"}
KV_ALGOS = {"FP8": "fp8", "INT8": "int8", "NVFP4": "nvfp4"}


def stored_weight_dtype(file: Path, config: dict[str, Any], keys: ConfigKeys) -> str:
    """Name of the format of the linear layers. Raises ModelFileError for one that is not known."""
    quantization = _quantization(file, config, keys)
    if quantization:
        return _quantized_dtype(file, quantization)
    name = keys.get("torch_dtype", keys.get("dtype", config.get("torch_dtype", "bfloat16")))
    dtype = TORCH_DTYPES.get(str(name))
    if dtype is None:
        raise ModelFileError(f"{file}: torch_dtype {name!r} is none of {', '.join(TORCH_DTYPES)}")
    return dtype


def stored_weight_bytes(folder: Path) -> int | None:
    """Of the safetensors files there, or what their index says of them; None without either."""
    index = folder / INDEX
    if index.is_file():
        return _indexed_bytes(index)
    # Beside model*.safetensors there may be the same weights in another layout, or adapters.
    files = list(folder.glob("model*.safetensors"))
    return sum(file.stat().st_size for file in files) if files else None


def stored_kv_dtype(file: Path, config: dict[str, Any]) -> str | None:
    """What the checkpoint was calibrated for; None: the model's own format."""
    algorithm = str(_modelopt(file).get("kv_cache_quant_algo"))
    if algorithm in KV_ALGOS:
        return KV_ALGOS[algorithm]
    quantization = config.get("quantization_config") or {}
    scheme = quantization.get("kv_cache_scheme") if isinstance(quantization, dict) else None
    if isinstance(scheme, dict) and scheme.get("num_bits") == 8:
        return "fp8" if scheme.get("type") == "float" else "int8"
    return None


def _quantization(file: Path, config: dict[str, Any], keys: ConfigKeys) -> dict[str, Any]:
    found = config.get("quantization_config") or keys.get("quantization_config") or _modelopt(file)
    if not isinstance(found, dict):
        raise ModelFileError(f"{file}: quantization_config is {found!r}, not an object")
    return found


def _modelopt(file: Path) -> dict[str, Any]:
    """The `quantization` object that NVIDIA's ModelOpt writes beside config.json."""
    path = file.parent / MODELOPT
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))["quantization"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFileError(f"{path}: no quantization object: {error}") from error
    return value if isinstance(value, dict) else {}


def _quantized_dtype(file: Path, quantization: dict[str, Any]) -> str:
    method = str(quantization.get("quant_method", "modelopt"))
    if method in METHODS:
        return METHODS[method]
    algorithm = str(quantization.get("quant_algo", "")).upper()
    for mark, dtype in (("NVFP4", "nvfp4"), ("FP8", "fp8"), ("W4A", "int4"), ("W8A", "int8")):
        if mark in algorithm:
            return dtype
    bits = quantization.get("bits", _group_bits(quantization))
    if isinstance(bits, int) and bits in BITS:
        return BITS[bits]
    raise ModelFileError(
        f"{file}: weights are quantised by {method!r} in a way that is not known here"
    )


def _group_bits(quantization: dict[str, Any]) -> Any:
    """compressed-tensors: the bits of the first group's weights."""
    groups = quantization.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    return weights.get("num_bits") if isinstance(weights, dict) else None


def _indexed_bytes(index: Path) -> int:
    try:
        size = json.loads(index.read_text("utf-8"))["metadata"]["total_size"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFileError(f"{index}: no metadata.total_size: {error}") from error
    if not isinstance(size, (int, float)) or size < 1:
        raise ModelFileError(f"{index}: metadata.total_size is {size!r}")
    return int(size)
