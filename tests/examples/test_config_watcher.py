"""The settings of the example follow their keys, and refuse what cannot be."""

from examples.config_watcher import PREFIX, Settings, follow
from kvorum import Client


def test_settings_follow_their_keys(kvorum_client: Client) -> None:
    told: list[str] = []
    kvorum_client.put(f"{PREFIX}greeting", "good morning")
    followed = follow(kvorum_client, told.append)
    assert next(followed) == Settings(greeting="good morning")
    kvorum_client.put(f"{PREFIX}requests_per_second", "7")
    assert next(followed) == Settings("good morning", 7)
    kvorum_client.put(f"{PREFIX}is_verbose", "on")
    assert next(followed) == Settings("good morning", 7, True)
    kvorum_client.delete(f"{PREFIX}greeting")
    assert next(followed) == Settings("hello", 7, True)
    assert told == []
    # These change nothing, so the next settings are those of the last change.
    kvorum_client.put(f"{PREFIX}requests_per_second", "many")
    kvorum_client.put(f"{PREFIX}is_verbose", "perhaps")
    kvorum_client.put(f"{PREFIX}colour", "blue")
    kvorum_client.put(f"{PREFIX}greeting", "good evening")
    assert next(followed) == Settings("good evening", 7, True)
    followed.close()
    assert any("requests_per_second stays 7" in line for line in told)
    assert any("is_verbose cannot be 'perhaps'" in line for line in told)
    assert any("colour" in line for line in told)


def test_without_keys_the_defaults_hold(kvorum_client: Client) -> None:
    followed = follow(kvorum_client)
    assert next(followed) == Settings()
    followed.close()
