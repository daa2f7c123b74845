"""A meter for tests: one token per word or role marker, 100 bytes of KV each."""

from sglang_dsl.ir.execution import ConstraintReport, Segment
from sglang_dsl.ir.nodes import Gen, Plain, Raw, RoleBegin, RoleEnd, Select, Text


class WordMeter:
    model = "words"
    context_tokens = 1000
    kv_bytes_per_token = 100

    def count(self, text):
        return len(text.split())

    def render(self, path, values):
        return tuple(segment for node in path for segment in self._segments(node))

    def _segments(self, node):
        match node:
            case Text(pieces=pieces):
                for piece in pieces:
                    text = piece.text if isinstance(piece, Plain | Raw) else "{value}"
                    yield Segment(node_id=node.id, text=text, token_ids=tuple(range(self.count(text))))
            case RoleBegin() | RoleEnd():
                yield Segment(node_id=node.id, text="<role>", token_ids=(0,), control=True)
            case Gen():
                yield Segment(node_id=node.id, text="{gen}", max_tokens=node.sampling.max_tokens)
            case Select():
                yield Segment(node_id=node.id, text="{select}", max_tokens=max(self.count(c) for c in node.choices))

    def seam(self, before, after):
        merged = bool(before.strip() and after.strip()) and not (before[-1].isspace() or after[0].isspace())
        return f"{before.split()[-1]}|{after.split()[0]}" if merged else ""

    def audit(self, constraint):
        return ConstraintReport(
            forced_tokens=5, findings=("an unbounded string",) if "unbounded" in constraint.text else ()
        )
