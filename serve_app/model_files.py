"""Which model file the settings mean, and what an ingress needs of it.

Does not know weights: an ingress reads the file's metadata only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from controllers.errors import ModelFileError, SettingsError, SetupError
from infra import preflight
from infra.settings import Settings
from serve_app.chat import Chat
from serve_app.engine.config import ModelConfig
from serve_app.engine.gguf import GgufFile
from serve_app.engine.model_store import ensure_default_model
from serve_app.executors.trtllm import check_installed
from serve_app.executors.trtllm_config import max_seq_len_of
from serve_app.executors.trtllm_model import read_model_facts
from serve_app.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer

# Where a node that was started without `cachelane up` keeps the default model.
NODE_MODELS_DIR = Path("~/.cache/cachelane/models")

NO_FOLDER = (
    "model.path is not set: the TensorRT-LLM executor needs a Hugging Face folder (MODEL=folder)"
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Text:
    """Ids <-> text, and the chat template. `chat` None: the model has no template."""

    tokenizer: Tokenizer
    chat: Chat | None


def fetch_model(settings: Settings, models_dir: Path, say: Say) -> str:
    """Path of the model file, fetched if it is the default one.

    The scripted executor needs none ("" then); a path gives it that model's tokenizer and template.

    Raises SetupError or ModelFileError, one line that says what to do.
    """
    if settings.model.path is None and settings.executor.kind == "scripted":
        return ""
    if settings.model.path is None and settings.executor.kind == "trtllm":
        raise ModelFileError(NO_FOLDER)
    if settings.model.path is not None:
        path = Path(settings.model.path).expanduser()
        if not path.exists():
            raise ModelFileError(f"model.path: {path} does not exist")
        return str(path.resolve())
    return str(ensure_default_model(models_dir, say))


def check_model(settings: Settings) -> None:
    """Whether the executor is there and can take the file that the settings name.

    Raises SetupError, in a fraction of a second and not after everything else has started.
    """
    if settings.executor.kind == "trtllm":
        try:
            check_installed()  # looked for, not imported: that takes many seconds
        except SettingsError as error:
            raise SetupError(str(error)) from error
    check_model_file(settings)


def check_model_file(settings: Settings) -> None:
    """Whether it is a file for the executor, from its header alone. Raises SetupError."""
    if settings.executor.kind == "trtllm":
        _check_folder(settings)
        return
    if settings.model.path is None:
        return
    preflight.check_model(settings.model.path)
    path = Path(settings.model.path).expanduser()
    try:
        if settings.executor.kind == "scripted":
            load_text(path)
        else:
            with GgufFile(path) as file:
                ModelConfig.from_gguf(file)
    except ModelFileError as error:
        raise SetupError(f"{error}: MODEL= wants a GGUF file of the Llama family") from error


def _check_folder(settings: Settings) -> None:
    try:
        if settings.model.path is None:
            raise ModelFileError(NO_FOLDER)
        path = Path(settings.model.path).expanduser()
        facts = read_model_facts(path)
        max_seq_len_of(settings.executor, facts)
        load_text(path)
    except (ModelFileError, SettingsError) as error:
        raise SetupError(str(error)) from error


def model_path_on_this_node(settings: Settings) -> Path | None:
    """For a replica or an ingress: the file here, fetched by itself if nobody did."""
    path = fetch_model(settings, NODE_MODELS_DIR.expanduser(), lambda line: None)
    return Path(path) if path else None


def load_text(path: Path | None) -> Text:
    """Tokenizer and chat template of a model file; of bytes, without a file."""
    tokenizer = load_tokenizer(path) if path is not None else ByteTokenizer()
    return Text(tokenizer, Chat(tokenizer) if tokenizer.chat_template is not None else None)
