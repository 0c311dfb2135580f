"""`snapshot save` where a server wants certificates and passwords."""

from pathlib import Path

import pytest

from kvorum.api.pb.etcdserverpb import (
    AuthEnableRequest,
    AuthRoleAddRequest,
    AuthUserAddRequest,
    AuthUserGrantRoleRequest,
)
from kvorum.tools.utl.main import run
from tests.certificates import Authority
from tests.kvorum import running_kvorum
from tests.tools.utl.history import ask, connected


@pytest.mark.long
def test_certificates_are_shown_and_demanded(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, own = authority.issue("server"), authority.issue("own", purposes=["client"])
    flags = (f"--cert-file={server.cert}", f"--key-file={server.key}", "--client-cert-auth")
    trusted = f"--trusted-ca-file={authority.cert}"
    with running_kvorum(tmp_path / "data", *flags, trusted, scheme="https") as kvorum:
        words = ["snapshot", "save", str(tmp_path / "saved")]
        words += [f"--endpoints=https://{kvorum.address}", f"--cacert={authority.cert}"]
        assert run(words) == 5
        assert not (tmp_path / "saved").exists()
        assert run([*words, f"--cert={own.cert}", f"--key={own.key}"]) == 0
    assert run(["snapshot", "status", str(tmp_path / "saved")]) == 0


@pytest.mark.long
def test_a_user_logs_in(tmp_path: Path) -> None:
    with running_kvorum(tmp_path / "data") as kvorum:
        with connected(kvorum.address) as client:
            ask(client, "Auth/UserAdd", AuthUserAddRequest(name="root", password="se:cret"))
            ask(client, "Auth/RoleAdd", AuthRoleAddRequest(name="root"))
            ask(client, "Auth/UserGrantRole", AuthUserGrantRoleRequest(user="root", role="root"))
            ask(client, "Auth/AuthEnable", AuthEnableRequest())
        words = ["snapshot", "save", str(tmp_path / "saved"), f"--endpoints={kvorum.address}"]
        assert run(words) == 5
        assert run([*words, "--user=root", "--password=wrong"]) == 5
        assert not (tmp_path / "saved").exists()
        assert run([*words, "--user=root:se:cret"]) == 0
        (tmp_path / "saved").unlink()
        assert run([*words, "--user=root", "--password=se:cret"]) == 0
    assert run(["snapshot", "restore", str(tmp_path / "saved"), f"--data-dir={tmp_path}/new"]) == 0
