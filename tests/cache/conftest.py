"""A cache beside a plain model of what it should hold."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from sglang_dsl.runtime.cache import integrity
from sglang_dsl.runtime.cache.keys import TOKEN_BYTES, Namespace, pack
from sglang_dsl.runtime.cache.prefix_cache import PrefixCache


class Client:
    """What a request does with the cache, by hand: hold a prefix, compute the rest on own pages, hand it over, release."""

    def __init__(self, cache: PrefixCache, name: str, tokens: tuple[int, ...], namespace: Namespace) -> None:
        self.cache, self.name, self.tokens = cache, name, tokens
        match = cache.tree.match(namespace, pack(tokens), len(tokens))
        self.receipt = cache.tree.acquire(match.node, name)
        self.pages, self.tree_pages, self.computed = match.pages, len(match.pages), match.tokens
        self.cached_tokens = match.tokens

    def compute(self) -> bool:
        need = self.cache.pages_for(len(self.tokens)) - len(self.pages)
        pages = self.cache.allocate_each([1] * need)
        if pages is None:
            return False
        self.pages += pages
        self.computed = len(self.tokens)
        return True

    def adopt(self) -> None:
        size = self.cache.page_size
        whole = self.computed // size
        key = pack(self.tokens[self.tree_pages * size : whole * size])
        own = self.pages[self.tree_pages : whole]
        taken = self.cache.adopt(self.receipt, key, own)
        self.pages[self.tree_pages : whole] = own
        self.tree_pages += taken

    def release(self) -> None:
        self.cache.pool.free(self.pages[self.tree_pages :])
        self.cache.tree.release(self.receipt)

    def holding(self) -> integrity.Holding:
        return integrity.Holding(self.name, self.pages, self.tree_pages, self.receipt)


class Bench:
    """A cache, its clients, and a check of everything."""

    def __init__(self, num_pages: int = 64, page_size: int = 1, eviction: str = "lru") -> None:
        self.cache = PrefixCache(num_pages, page_size, eviction)  # type: ignore[arg-type]
        self.clients: list[Client] = []
        self.namespace = Namespace()

    def client(self, *tokens: int, namespace: Namespace | None = None) -> Client:
        client = Client(self.cache, f"c{len(self.clients)}", tokens, namespace or self.namespace)
        self.clients.append(client)
        return client

    def put(self, *tokens: int, namespace: Namespace | None = None) -> list[int]:
        """Compute and cache tokens, holding nothing afterwards. Returns their pages."""
        client = self.client(*tokens, namespace=namespace)
        assert client.compute()
        client.adopt()
        pages = list(client.pages)
        self.drop(client)
        return pages

    def drop(self, client: Client) -> None:
        self.clients.remove(client)
        client.release()

    def cached(self, *tokens: int, namespace: Namespace | None = None) -> int:
        """How many of the tokens a request would find, without touching anything."""
        return self.cache.tree.peek(namespace or self.namespace, pack(tokens), len(tokens))[1]

    def check(self) -> None:
        integrity.check(self.cache, [client.holding() for client in self.clients])

    @property
    def token_bytes(self) -> int:
        return TOKEN_BYTES


@pytest.fixture
def bench() -> Callable[..., Bench]:
    """Makes a Bench."""
    return Bench


@pytest.fixture
def rng() -> random.Random:
    """A seeded source of chance."""
    return random.Random(20260101)
