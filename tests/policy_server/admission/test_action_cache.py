from __future__ import annotations

from policy_server.admission.action_cache import ActionCache
from policy_server.games.prompts import ParsedAction


def parsed(name: str) -> ParsedAction:
    return ParsedAction({"command": name}, "", name)


def test_the_cache_keeps_what_was_used_last():
    cache = ActionCache(2)
    cache.put("a", parsed("a"))
    cache.put("b", parsed("b"))
    assert cache.get("a") == parsed("a")
    cache.put("c", parsed("c"))
    assert cache.get("b") is None and cache.get("a") and cache.get("c")


def test_a_cache_of_none_keeps_nothing():
    cache = ActionCache(0)
    cache.put("a", parsed("a"))
    assert cache.get("a") is None
