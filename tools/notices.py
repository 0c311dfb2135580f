"""Write the licenses of the crates that are linked into the native edge: `make notices`.

Each distribution of the edge, as a wheel or an image, must include these licenses. If a crate has
several licenses, Apache's is left out where there is another: Apache's text is in this repository,
and the others name the crate's authors.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

RUST = Path(__file__).parents[1] / "rust"
NOTICES = RUST / "NOTICES.txt"
TARGET = "x86_64-unknown-linux-gnu"
LICENSE = re.compile(r"(LICEN[SC]E|COPYING|COPYRIGHT|NOTICE)([-._].*)?", re.IGNORECASE)
HEAD = """\
Third-party code in the native edge of Kvorum, kvorum/network/edge/_native.abi3.so.

The crates below are linked into it, and so is the standard library of Rust (MIT OR Apache-2.0).
Written by 'make notices' from rust/Cargo.lock.
"""


def linked() -> list[dict[str, Any]]:
    """Return the packages of others whose code is in the library, sorted by name."""
    command = ["cargo", "metadata", "--locked", "--format-version=1"]
    command += [f"--filter-platform={TARGET}", f"--manifest-path={RUST / 'Cargo.toml'}"]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = {each["id"]: each for each in found["packages"]}
    nodes = {each["id"]: each for each in found["resolve"]["nodes"]}
    waiting, seen = [found["resolve"]["root"]], set()
    while waiting:
        here = waiting.pop()
        if here in seen or any("proc-macro" in each["kind"] for each in packages[here]["targets"]):
            continue
        seen.add(here)
        waiting += [
            each["pkg"]
            for each in nodes[here]["deps"]
            if any(kind["kind"] is None for kind in each["dep_kinds"])
        ]
    # Our own packages come from no registry.
    of_others = [packages[each] for each in seen if packages[each]["source"] is not None]
    return sorted(of_others, key=lambda each: (each["name"], each["version"]))


def texts(package: dict[str, Any]) -> list[str]:
    """Return the license texts in a package; raises LookupError if it has none."""
    directory = Path(package["manifest_path"]).parent
    paths = sorted(
        path for path in directory.rglob("*") if path.is_file() and LICENSE.fullmatch(path.name)
    )
    has_choice = " OR " in package["license"] or "/" in package["license"]
    others = [path for path in paths if "apache" not in path.name.lower()]
    if has_choice and others:
        paths = others
    if not paths:
        raise LookupError(f"{package['name']} {package['version']} comes without its license")
    return [path.read_text(errors="replace").strip() for path in paths]


def main() -> None:
    """Write the file; a text that several packages share appears once."""
    owners: dict[str, list[str]] = {}
    for package in linked():
        name = f"{package['name']} {package['version']} ({package['license']})"
        for text in texts(package):
            listed = owners.setdefault(text, [])
            if name not in listed:
                listed.append(name)
    parts = [HEAD]
    for text, names in owners.items():
        parts.append("\n".join(["=" * 78, *names, "-" * 78, "", text, ""]))
    NOTICES.write_text("\n".join(parts))
    print(f"{NOTICES}: {len(owners)} texts")


if __name__ == "__main__":
    main()
