from __future__ import annotations

from policy_server.admission.action_cache import ActionCache
from policy_server.games.prompts import ParsedAction


def parsed(name: str) -> ParsedAction:
    return ParsedAction({"command": name}, "", name)


def test_the_cache_keeps_what_was_used_last():
    cache = ActionCache(2)
    cache.put("a", 1, parsed("a"))
    cache.put("b", 1, parsed("b"))
    assert cache.get("a", 1) == parsed("a")
    cache.put("c", 1, parsed("c"))
    assert cache.get("b", 1) is None and cache.get("a", 1) and cache.get("c", 1)


def test_a_cache_of_none_keeps_nothing():
    cache = ActionCache(0)
    cache.put("a", 1, parsed("a"))
    assert cache.get("a", 1) is None


def test_without_a_distance_only_the_same_image_counts():
    cache = ActionCache(2)
    cache.put("a", 0b1111, parsed("a"))
    assert cache.get("a", 0b1110) is None


def test_with_a_distance_the_nearest_image_within_it_counts():
    cache = ActionCache(10, distance=2)
    cache.put("a", 0b0000_0000, parsed("none"))
    cache.put("a", 0b1111_0000, parsed("high"))
    assert cache.get("a", 0b0000_0011) == parsed("none")
    assert cache.get("a", 0b1110_0000) == parsed("high")
    assert cache.get("a", 0b0000_0111) is None
    assert cache.get("b", 0b0000_0000) is None  # another situation
