"""A Target that passes everything to another and keeps what came back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ...interpret.forwarding import ForwardingTarget
from ...interpret.target import Target
from ...schedule.request import Request, Result, Sink
from ...text.protocol import ChatTemplate, TextModel, TextPiece, Tokenizer, Turn
from .key import key_of
from .tape import Take, Tape


class RecordingTarget(ForwardingTarget):
    """Thread-safe. Cancelled calls are kept, too: they lost a race, and have to lose it again."""

    def __init__(self, target: Target, tape: Tape, clean: Callable[[str], str]) -> None:
        super().__init__(target)
        self.text = RecordingText(target.text, tape)
        self._tape = tape
        self._clean = clean
        self._lock = threading.Lock()
        self._ends = 0
        tape.model = target.info.model
        tape.context_tokens = target.info.context_tokens
        tape.kv_bytes_per_token = target.info.kv_bytes_per_token

    def submit(self, requests: Sequence[tuple[Request, Sink]]) -> None:
        """See `Target`."""
        recorded = [(request, RecordingSink(sink, self._take(request), self._next_end)) for request, sink in requests]
        self._behind.submit(recorded)

    def _take(self, request: Request) -> Take:
        take = Take(key_of(request, self.info.model, self._behind.text.tokenizer, self._clean))
        with self._lock:
            self._tape.takes.append(take)
        return take

    def _next_end(self) -> int:
        with self._lock:
            self._ends += 1
            return self._ends - 1


class RecordingSink:
    """Keeps one call's output as it comes."""

    def __init__(self, sink: Sink, take: Take, next_end: Callable[[], int]) -> None:
        self._sink = sink
        self._take = take
        self._next_end = next_end

    def started(self) -> None:
        """See `Sink`."""
        self._sink.started()

    def text(self, delta: str, token_ids: Sequence[int]) -> None:
        """See `Sink`."""
        self._take.deltas.append((delta, len(token_ids)))
        self._sink.text(delta, token_ids)

    def done(self, result: Result | Exception) -> None:
        """See `Sink`."""
        self._take.end = self._next_end()
        self._take.outcome = result
        self._sink.done(result)


class RecordingText:
    """A TextModel that notes how control texts and turns read."""

    def __init__(self, text: TextModel, tape: Tape) -> None:
        self.tokenizer: Tokenizer = RecordingTokenizer(text.tokenizer, tape)
        self.template: ChatTemplate = RecordingTemplate(text.template, tape)


class RecordingTokenizer:
    """The tokenizer, noting what of each control text is plain."""

    def __init__(self, tokenizer: Tokenizer, tape: Tape) -> None:
        self.vocab_size = tokenizer.vocab_size
        self.bos_id = tokenizer.bos_id
        self.adds_bos = tokenizer.adds_bos
        self.stop_ids = tokenizer.stop_ids
        self.control_ids = tokenizer.control_ids
        self.fingerprint = tokenizer.fingerprint
        self.encode = tokenizer.encode
        self.token_bytes = tokenizer.token_bytes
        self.fewest_tokens = tokenizer.fewest_tokens
        self.decode = tokenizer.decode
        self._tokenizer = tokenizer
        self._tape = tape

    def encode_segment(self, pieces: Sequence[TextPiece], *, first: bool = False) -> list[int]:
        """See `Tokenizer`."""
        for piece in pieces:
            if piece.control and piece.text not in self._tape.controls:
                ids = self._tokenizer.encode_segment((piece,))
                self._tape.controls[piece.text] = self._tokenizer.decode(ids)
        return self._tokenizer.encode_segment(pieces, first=first)


class RecordingTemplate:
    """The template, noting what it says for which roles."""

    def __init__(self, template: ChatTemplate, tape: Tape) -> None:
        self._template = template
        self._tape = tape

    def open_turn(self, turns: Sequence[Turn], role: str) -> str:
        """See `ChatTemplate`."""
        marker = self._template.open_turn(turns, role)
        self._tape.template[turn_key("open", turns, role)] = marker
        return marker

    def close_turn(self, turns: Sequence[Turn]) -> str:
        """See `ChatTemplate`."""
        marker = self._template.close_turn(turns)
        self._tape.template[turn_key("close", turns)] = marker
        return marker


def turn_key(act: str, turns: Sequence[Turn], role: str = "") -> str:
    """Under what a template's answer is kept."""
    return " ".join([act, *(turn.role for turn in turns), *([role] if role else [])])
