from __future__ import annotations

from sglang_dsl.runtime.interpret.entries import longest_path


def test_longest_path_takes_the_heaviest_branch() -> None:
    followers = {"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}
    weights = {"a": 1, "b": 10, "c": 3, "d": 5}
    assert longest_path("a", followers.__getitem__, weights.__getitem__) == 16


def test_longest_path_of_a_long_chain_needs_no_recursion() -> None:
    assert longest_path(0, lambda n: [n + 1] if n < 9_999 else [], lambda n: 1) == 10_000


def test_longest_path_of_a_diamond_ladder_visits_each_node_once() -> None:
    visits: list[int] = []

    def followers(n: int) -> list[int]:
        return [] if n >= 60 else [n + 2 - n % 2, n + 3 - n % 2]

    def weight(n: int) -> int:
        visits.append(n)
        return 1

    assert longest_path(0, followers, weight) == 31
    assert len(visits) == len(set(visits))
