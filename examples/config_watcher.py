"""Settings that a running program follows: change a key, and every process uses the new value.

Each setting is a key below `settings/`. The program reports a value that it cannot parse, and keeps
the previous one.

Run it, and change a key: `python -m examples.config_watcher localhost:2379`
"""

import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass, fields, replace
from typing import Any

from kvorum import Client
from kvorum.client import KeyValue

PREFIX = "settings/"


@dataclass(frozen=True)
class Settings:
    """The settings and their defaults."""

    greeting: str = "hello"
    requests_per_second: int = 100
    is_verbose: bool = False


def switch(text: str) -> bool:
    """Parse a setting that is on or off."""
    return {"on": True, "off": False}[text]


READERS: dict[str, Callable[[str], Any]] = {
    "greeting": str,
    "requests_per_second": int,
    "is_verbose": switch,
}
assert READERS.keys() == {each.name for each in fields(Settings)}


def changed(settings: Settings, kvs: list[KeyValue], tell: Callable[[str], None]) -> Settings:
    """Return the settings from their keys; a refused value leaves its setting as it was."""
    new = Settings()
    for kv in kvs:
        name = kv.key.decode().removeprefix(PREFIX)
        try:
            new = replace(new, **{name: READERS[name](kv.text)})
        except KeyError as error:
            if name in READERS:
                new = replace(new, **{name: getattr(settings, name)})
            tell(f"{name} cannot be {kv.text!r}: there is no {error}")
        except ValueError as error:
            new = replace(new, **{name: getattr(settings, name)})
            tell(f"{name} stays {getattr(settings, name)!r}: {error}")
    return new


def follow(client: Client, tell: Callable[[str], None] = print) -> Generator[Settings, None, None]:
    """Yield the current settings, and then the new settings after each change, for ever."""
    with client.cache(PREFIX) as cache:
        cache.wait_ready()
        settings, revision = changed(Settings(), list(cache), tell), cache.revision
        yield settings
        while True:
            revision = cache.wait_change(revision)
            before, settings = settings, changed(settings, list(cache), tell)
            if settings != before:
                yield settings


def main(endpoint: str) -> None:
    """Print the settings at the start and whenever they change."""
    with Client(endpoint) as client:
        for settings in follow(client):
            print(settings)


if __name__ == "__main__":
    main(*sys.argv[1:])
