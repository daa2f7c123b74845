"""A model's tokenizer and chat template, from whatever its files are."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import DslError, MissingExtraError, ModelLoadError, RoleError
from .bpe_tokenizer import BpeTokenizer
from .folder_tokenizer import FolderTokenizer, check_control_text, tokenizer_from_folder
from .gguf import read_header, tokenizer_from_gguf
from .jinja_template import JinjaTemplate, TemplateReport
from .tokenizer import ChatTemplate, LabelTemplate, Marker, TextPiece, Tokenizer, Turn, read_json

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedText:
    """Implements `TextModel`. `report`: whether the template keeps what it rendered."""

    tokenizer: Tokenizer
    template: ChatTemplate
    report: TemplateReport = field(default_factory=TemplateReport)


def load_text(path: Path, fingerprint: str) -> LoadedText:
    """Tokenizer and template of a `.gguf` file or a Hugging Face folder.

    The stop ids are all the model has: of its tokenizer, its generation config, and the token with which its template
    ends an answer. A model without a template gets `LabelTemplate`.

    Raises:
        ModelLoadError: files that are missing, damaged or of an unknown kind.
        MissingExtraError: the engine extra is not installed.
    """
    try:
        import tokenizers  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "a model's text needs the `tokenizers` library", hint="pip install 'sglang-dsl[engine]'"
        ) from error
    try:
        return _from_folder(path, fingerprint) if path.is_dir() else _from_gguf(path, fingerprint)
    except DslError:
        raise
    except Exception as error:  # whatever hostile values lead to, in the libraries that read them too
        raise ModelLoadError(
            f"the tokenizer or chat template of {path} is damaged: {type(error).__name__}: {error}",
            hint="download the model again",
        ) from error


def _from_gguf(path: Path, fingerprint: str) -> LoadedText:
    metadata = read_header(path).metadata
    tokenizer = tokenizer_from_gguf(metadata, fingerprint)
    tokens = metadata["tokenizer.ggml.tokens"]
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in _GGUF_NAMES.items()}
    variables = {
        name: tokens[token_id]
        for name, token_id in ids.items()
        if isinstance(token_id, int) and 0 <= token_id < len(tokens)
    }
    return _join(tokenizer, metadata.get("tokenizer.chat_template"), variables)


_GGUF_NAMES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_CHATS = (("user", "assistant"), ("system", "user", "assistant", "user"))


def _from_folder(folder: Path, fingerprint: str) -> LoadedText:
    found = tokenizer_from_folder(folder, fingerprint)
    source = _folder_template(folder, read_json(folder / "tokenizer_config.json"))
    loaded = _join(found.tokenizer, source, found.names)
    if source is not None:
        for roles in _CHATS:
            _check_chat(found, loaded.template, roles)
    return loaded


def _check_chat(found: FolderTokenizer, template: ChatTemplate, roles: Sequence[str]) -> None:
    """Compare the ids of a conversation with the library's. Raises ModelLoadError where they differ."""
    pieces: list[TextPiece] = []
    turns: list[Turn] = []
    try:
        for role in roles:
            content = f"The {role} says: 1, 2,\n 3."
            pieces += [TextPiece(template.open_turn(turns, role), control=True), TextPiece(content)]
            turns.append(Turn(role, content))
            pieces.append(TextPiece(template.close_turn(turns), control=True))
    except RoleError:
        return  # the template refuses these roles, here as in a run
    check_control_text(found, pieces)


def _folder_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """A file of its own goes before an entry in the config; of several named templates the default is taken."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    entry = settings.get("chat_template")
    if isinstance(entry, list):
        return next((named["template"] for named in entry if named.get("name") == "default"), None)
    return entry


def _join(tokenizer: BpeTokenizer, source: str | None, variables: Mapping[str, Any]) -> LoadedText:
    if source is None:
        return LoadedText(tokenizer, LabelTemplate())
    if not isinstance(source, str):
        raise ModelLoadError("the model's chat template is no text", hint="correct it, or download the model again")
    template = JinjaTemplate(source, variables)
    tokenizer.stop_ids |= _end_of_answer(tokenizer, template)
    report = template.report()
    if not report.stable:
        _log.warning("the chat template rewrites earlier turns; they stay as first rendered: %s", report.rewrites[0])
    return LoadedText(tokenizer, template, report)


def _end_of_answer(tokenizer: BpeTokenizer, template: JinjaTemplate) -> frozenset[int]:
    """The control token right behind an answer, if the template writes one."""
    closing = template.close_turn([Turn("user", ""), Turn("assistant", "", closed=False)])
    parts = tokenizer.split_control(closing.lstrip())
    return frozenset(part.token_id for part in parts[:1] if isinstance(part, Marker))
