"""A page in a browser that watches over a WebSocket, and what it does without the browser."""

import base64
import http.client
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.consumers import environment
from tests.consumers.browser import running_browser, serving
from tests.consumers.websocket import WebSocket, connected
from tests.etcd import is_target, running_etcd
from tests.kvorum import running_kvorum
from tests.waiting import until

pytestmark = pytest.mark.timeout(180)

PAGES = environment.REPOSITORY / "examples" / "browser"


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def post(server: str, path: str, token: str = "", **body: Any) -> dict[str, Any]:
    connection = http.client.HTTPConnection(server, timeout=60)
    try:
        headers = {"Authorization": token} if token else {}
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        answer: dict[str, Any] = json.load(response)
        assert response.status == 200, answer
        return answer
    finally:
        connection.close()


def put(server: str, key: bytes, value: bytes) -> None:
    post(server, "/v3/kv/put", key=encoded(key), value=encoded(value))


def result(talk: WebSocket) -> dict[str, Any]:
    message = talk.hear()
    assert message is not None
    found: dict[str, Any] = message["result"]
    return found


def test_watches_over_one_socket(server: str) -> None:
    with connected(server, "/v3/watch") as talk:
        for number, prefix in enumerate((b"one/", b"two/")):
            end = prefix[:-1] + b"0"
            talk.say(create_request={"key": encoded(prefix), "range_end": encoded(end)})
            created = result(talk)
            assert created["created"] and int(created.get("watch_id", 0)) == number
        put(server, b"two/a", b"1")
        large = b"x" * 200_000
        put(server, b"one/a", large)
        seen = [result(talk), result(talk)]
        assert [int(each.get("watch_id", 0)) for each in seen] == [1, 0]
        assert [each["events"][0]["kv"]["value"] for each in seen] == [
            encoded(b"1"),
            encoded(large),
        ]
        talk.say(cancel_request={"watch_id": "1"})
        assert result(talk)["canceled"]
        put(server, b"two/a", b"2")
        put(server, b"one/a", b"2")
        assert int(result(talk).get("watch_id", 0)) == 0


def test_a_lease_is_kept_alive(server: str) -> None:
    lease = post(server, "/v3/lease/grant", TTL=100)["ID"]
    with connected(server, "/v3/lease/keepalive") as talk:
        for _ in range(3):
            talk.say(ID=lease)
            assert result(talk)["TTL"] == "100"
        post(server, "/v3/lease/revoke", ID=lease)
        talk.say(ID=lease)
        assert "TTL" not in result(talk)


@pytest.mark.campaign
def test_a_page_in_chromium(server: str, tmp_path: Path) -> None:
    environment.require()
    put(server, b"page/before", b"not shown")
    query = urlencode({"server": server, "prefix": "page/"})
    with serving(PAGES) as pages, running_browser(tmp_path / "profile") as page:
        page.open(f"{pages}/watch.html?{query}")
        until("it watches", lambda: "watching since revision" in page.text("#state"))
        put(server, b"page/greeting", "gr\u00fc\u00df dich <b>".encode())
        post(server, "/v3/kv/deleterange", key=encoded(b"page/greeting"))
        put(server, b"elsewhere", b"not shown")
        put(server, b"page/last", b"")
        until("it shows the last event", lambda: "page/last" in page.text("#events"))
        lines = page.text("#events").splitlines()
    assert lines == [
        "page/greeting = gr\u00fc\u00df dich <b>",
        "page/greeting deleted",
        "page/last =",
    ]


@pytest.mark.campaign
@pytest.mark.parametrize("running", [running_kvorum, running_etcd], ids=["kvorum", "etcd"])
def test_a_page_with_a_token(running: Callable[..., Any], tmp_path: Path) -> None:
    environment.require()
    if running is running_etcd and not is_target():
        pytest.skip("before 3.7 etcd did not understand the token of a page")
    with running(tmp_path / "data", "--bcrypt-cost=4") as member:
        server = member.address
        post(server, "/v3/auth/user/add", name="root", password="secret")
        post(server, "/v3/auth/user/grant", user="root", role="root")
        post(server, "/v3/auth/enable")
        token = post(server, "/v3/auth/authenticate", name="root", password="secret")["token"]
        query = urlencode({"server": server, "token": token})
        with serving(PAGES) as pages, running_browser(tmp_path / "profile") as page:
            page.open(f"{pages}/watch.html?{query}")
            until("it watches", lambda: "watching since revision" in page.text("#state"))
            body = {"key": encoded(b"greeting"), "value": encoded(b"hello")}
            post(server, "/v3/kv/put", token, **body)
            until("it shows the event", lambda: page.text("#events") == "greeting = hello")
