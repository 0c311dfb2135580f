"""Certificates as people make them at home, good and bad, for every question about whom to trust.

A table of kinds; a test asks a real etcd about each of them. They are put together byte by byte,
because no library makes all of them.
"""

import datetime
import ipaddress
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kvorum.client.grpc.namesakes import allow_odd_names

DAY = datetime.timedelta(days=1)
HERE = ("127.0.0.1",)
SIGNATURES = {
    ("rsa", "sha256"): "300d06092a864886f70d01010b0500",
    ("rsa", "sha1"): "300d06092a864886f70d0101050500",
    ("ec", "sha256"): "300a06082a8648ce3d040302",
    ("ec", "sha384"): "300a06082a8648ce3d040303",
    ("ec", "sha512"): "300a06082a8648ce3d040304",
    ("ec", "sha1"): "300906072a8648ce3d0401",
    ("ed25519", ""): "300506032b6570",
}
HASHES: dict[str, Callable[[], hashes.HashAlgorithm]] = {
    "sha1": hashes.SHA1,
    "sha256": hashes.SHA256,
    "sha384": hashes.SHA384,
    "sha512": hashes.SHA512,
}
PURPOSES = {
    "server": ExtendedKeyUsageOID.SERVER_AUTH,
    "client": ExtendedKeyUsageOID.CLIENT_AUTH,
    "any": ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE,
    "mail": ExtendedKeyUsageOID.EMAIL_PROTECTION,
}
CLIENT_CA = {"ca": True, "purposes": ["client"]}
UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4.5"), b"\x05\x00")
DEMAND, WISH = [(UNKNOWN, True)], [(UNKNOWN, False)]


def new_key(kind: str) -> Any:
    """Make a key: `rsa2048`, `p256`, `ed25519`, ..."""
    if kind.startswith("rsa"):
        return rsa.generate_private_key(65_537, int(kind[3:]))
    if kind == "ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    curves: dict[str, Any] = {"p256": ec.SECP256R1, "p384": ec.SECP384R1, "p521": ec.SECP521R1}
    return ec.generate_private_key(curves[kind]())


def tlv(tag: int, content: bytes) -> bytes:
    """Return a value of DER."""
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(digits)]) + digits + content


def _sequence(*parts: bytes) -> bytes:
    return tlv(0x30, b"".join(parts))


def _time(moment: datetime.datetime) -> bytes:
    return tlv(0x17, moment.strftime("%y%m%d%H%M%SZ").encode())


def _name(common_name: str, country: str) -> x509.Name:
    allow_odd_names()
    parts = [x509.NameAttribute(NameOID.COUNTRY_NAME, country, _validate=False)] if country else []
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def usage_of(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


@dataclass(frozen=True, eq=False)
class Made:
    """A certificate and its key."""

    der: bytes
    key: Any
    name: x509.Name

    @property
    def pem(self) -> bytes:
        return ssl.DER_cert_to_PEM_cert(self.der).encode()

    @property
    def key_pem(self) -> bytes:
        encodings = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        pem: bytes = self.key.private_bytes(*encodings, serialization.NoEncryption())
        return pem


def make(
    name: str,
    issuer: Made | None = None,
    *,
    key: Any = "p256",
    ca: bool | None = None,
    path_length: int | None = None,
    signs: bool | None = None,
    purposes: Sequence[str] = (),
    hosts: Sequence[str] = (),
    days: tuple[int, int] = (-1, 1),
    digest: str = "",
    version: int = 3,
    country: str = "",
    more: Sequence[tuple[x509.ExtensionType, bool]] = (),
    has_key_identifier: bool = False,
    is_genuine: bool = True,
) -> Made:
    """Make a certificate; without an issuer it signs itself. None leaves an extension out."""
    secret = new_key(key) if isinstance(key, str) else key
    own_name = _name(name, country)
    signer, signer_name = (secret, own_name) if issuer is None else (issuer.key, issuer.name)
    is_rsa = isinstance(signer, rsa.RSAPrivateKey)
    is_edwards = isinstance(signer, ed25519.Ed25519PrivateKey)
    digest = "" if is_edwards else digest or "sha256"
    kind = "ed25519" if is_edwards else "rsa" if is_rsa else "ec"
    algorithm = bytes.fromhex(SIGNATURES[kind, digest])
    extensions: list[tuple[x509.ExtensionType, bool]] = [*more]
    if ca is not None:
        extensions.append((x509.BasicConstraints(ca=ca, path_length=path_length), True))
    if signs is not None:
        extensions.append((usage_of(signs=signs), True))
    if purposes:
        known = x509.ExtendedKeyUsage([PURPOSES[one] for one in purposes])
        extensions.append((known, False))
    if hosts:
        extensions.append((x509.SubjectAlternativeName([_host(one) for one in hosts]), False))
    if has_key_identifier:
        extensions.append((x509.SubjectKeyIdentifier(b"\x01\x02\x03\x04\x05"), False))
    now = datetime.datetime.now(datetime.UTC)
    public = secret.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    # Of twenty bytes, and positive.
    serial = x509.random_serial_number() | 1 << 158
    signed = _sequence(
        tlv(0xA0, tlv(2, bytes([version - 1]))) if version > 1 else b"",
        tlv(2, serial.to_bytes(20, "big")),
        algorithm,
        signer_name.public_bytes(),
        _sequence(_time(now + days[0] * DAY), _time(now + days[1] * DAY)),
        own_name.public_bytes(),
        public,
        tlv(0xA3, _sequence(*map(_extension, extensions))) if extensions else b"",
    )
    if is_edwards:
        signature = signer.sign(signed)
    elif is_rsa:
        signature = signer.sign(signed, padding.PKCS1v15(), HASHES[digest]())
    else:
        signature = signer.sign(signed, ec.ECDSA(HASHES[digest]()))
    if not is_genuine:
        signature = signature[:-1] + bytes([signature[-1] ^ 1])
    return Made(_sequence(signed, algorithm, tlv(3, b"\0" + signature)), secret, own_name)


def _extension(extension: tuple[x509.ExtensionType, bool]) -> bytes:
    value, is_critical = extension
    digits = [int(digit) for digit in value.oid.dotted_string.split(".")]
    identifier = bytes([digits[0] * 40 + digits[1]])
    for digit in digits[2:]:
        sevens = [digit & 0x7F]
        while digit := digit >> 7:
            sevens.append(0x80 | digit & 0x7F)
        identifier += bytes(reversed(sevens))
    critical = b"\x01\x01\xff" if is_critical else b""
    return _sequence(tlv(6, identifier), critical, tlv(4, value.public_bytes()))


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


@dataclass
class Kind:
    """What is shown, and what the one that judges it believes."""

    shown: list[Made]
    believed: list[Made]
    host: str = "127.0.0.1"


def _issued(name: str, root: dict[str, Any], leaf: dict[str, Any]) -> Kind:
    """Return a certificate of an authority of its own."""
    authority = make(f"{name} authority", **{"ca": True, **root})
    return Kind([make(name, authority, **{"hosts": HERE, **leaf})], [authority])


def _between(name: str, middle: dict[str, Any], root: dict[str, Any] | None = None) -> Kind:
    """Return a certificate of an authority that another one vouches for."""
    authority = make(f"{name} authority", **{"ca": True, **(root or {})})
    between = make(f"{name} between", authority, **{"ca": True, **middle})
    return Kind([make(name, between, hosts=HERE), between], [authority])


def _own(name: str, **given: Any) -> Kind:
    """Return a certificate that is its own authority."""
    made = make(name, **{"hosts": HERE, **given})
    return Kind([made], [made])


def kinds() -> dict[str, Kind]:
    """Make one of each kind."""
    permitted = x509.NameConstraints([x509.IPAddress(ipaddress.ip_network("127.0.0.0/8"))], None)
    others = x509.NameConstraints([x509.IPAddress(ipaddress.ip_network("10.0.0.0/8"))], None)
    found = {
        "self-signed authority": _own("own", ca=True),
        "self-signed authority, as openssl req -x509": _own("req", ca=True, key="rsa2048"),
        "self-signed authority with key usage": _own("used", ca=True, signs=True),
        "self-signed authority that may not sign": _own("unsigned", ca=True, signs=False),
        "self-signed authority for servers": _own("self servers", ca=True, purposes=["server"]),
        "self-signed authority for clients": _own("self clients", ca=True, purposes=["client"]),
        "self-signed authority for anything": _own("self any", ca=True, purposes=["any"]),
        "self-signed authority for mail": _own("self mail", ca=True, purposes=["mail"]),
        "self-signed authority, expired": _own("self late", ca=True, days=(-9, -1)),
        "self-signed authority, too early": _own("self early", ca=True, days=(1, 9)),
        "self-signed authority with a long country": _own("usa", ca=True, country="USA"),
        "self-signed authority with an unknown demand": _own(
            "ask", ca=True, more=[(UNKNOWN, True)]
        ),
        "self-signed authority with an unknown wish": _own(
            "wish", ca=True, more=[(UNKNOWN, False)]
        ),
        "self-signed authority with path length 0": _own("zero", ca=True, path_length=0),
        "self-signed, no authority": _own("plain", ca=False),
        "self-signed, saying nothing": _own("silent"),
        "self-signed, saying nothing, for signing": _own("signing", signs=True),
        "self-signed of version 1": _own("first", version=1, hosts=()),
        "self-signed with a broken signature": _own("broken", ca=True, is_genuine=False),
        "self-signed, signed with SHA-1": _own("self sha1", ca=True, digest="sha1"),
        "issued": _issued("issued", {}, {}),
        "issued, no authority": _issued("end", {"signs": True}, {"ca": False}),
        "issued, an authority": _issued("issued ca", {}, {"ca": True}),
        "issued, an authority for clients": _issued(
            "c ca", {}, {"ca": True, "purposes": ["client"]}
        ),
        "issued for servers": _issued("for servers", {}, {"purposes": ["server"]}),
        "issued for clients": _issued("for clients", {}, {"purposes": ["client"]}),
        "issued for anything": _issued("for any", {}, {"purposes": ["any"]}),
        "issued for both": _issued("for both", {}, {"purposes": ["server", "client"]}),
        "issued for mail": _issued("for mail", {}, {"purposes": ["mail"]}),
        "issued, expired": _issued("late", {}, {"days": (-9, -1)}),
        "issued, too early": _issued("early", {}, {"days": (1, 9)}),
        "issued of version 1": _issued("v1", {}, {"version": 1, "hosts": ()}),
        "issued with an unknown demand": _issued("demand", {}, {"more": DEMAND}),
        "issued with a broken signature": _issued("bad", {}, {"is_genuine": False}),
        "issued with a name that is not here": _issued("else", {}, {"hosts": ["127.0.0.2"]}),
        "issued with a common name only": _issued("127.0.0.1", {}, {"hosts": ()}),
        "issued with RSA 2048": _issued("rsa", {"key": "rsa2048"}, {"key": "rsa2048"}),
        "issued with RSA 3072": _issued("rsa3", {"key": "rsa3072"}, {"key": "rsa3072"}),
        "issued with P-384": _issued("p384", {"key": "p384"}, {"key": "p384", "digest": "sha384"}),
        "issued with Ed25519": _issued("ed", {"key": "ed25519"}, {"key": "ed25519"}),
        "issued with RSA 1024": _issued("rsa1", {}, {"key": "rsa1024"}),
        "of an authority with RSA 1024": _issued("rsa1 ca", {"key": "rsa1024"}, {}),
        "issued with P-521": _issued("p521", {}, {"key": "p521"}),
        "of an authority with P-521": _issued("p521 ca", {"key": "p521"}, {"digest": "sha512"}),
        "issued with SHA-512": _issued("sha512", {}, {"digest": "sha512"}),
        "issued with SHA-1": _issued("sha1", {}, {"digest": "sha1"}),
        "issued with RSA and SHA-1": _issued("rsha1", {"key": "rsa2048"}, {"digest": "sha1"}),
        "of an authority signed with SHA-1": _issued("root sha1", {"digest": "sha1"}, {}),
        "of an authority with key usage": _issued("ku", {"signs": True}, {}),
        "of an authority that may not sign": _issued("nosign", {"signs": False}, {}),
        "of an authority that is none": _issued("none", {"ca": False}, {}),
        "of an authority that says nothing": _issued("mute", {"ca": None}, {}),
        "of a silent authority that may sign": _issued("mute2", {"ca": None, "signs": True}, {}),
        "of an authority of version 1": _issued("old", {"ca": None, "version": 1}, {}),
        "of an expired authority": _issued("old ca", {"days": (-9, -1)}, {}),
        "of an authority from tomorrow": _issued("new ca", {"days": (1, 9)}, {}),
        "of an authority with path length 0": _issued("short", {"path_length": 0}, {}),
        "of an authority for servers": _issued("root s", {"purposes": ["server"]}, {}),
        "of an authority for clients": _issued("root c", {"purposes": ["client"]}, {}),
        "of an authority with an unknown demand": _issued("rd", {"more": DEMAND}, {}),
        "of an authority for these addresses": _issued("net", {"more": [(permitted, True)]}, {}),
        "of an authority for other addresses": _issued("oth", {"more": [(others, True)]}, {}),
        "of an authority in between": _between("mid", {}),
        "between: no authority": _between("mid none", {"ca": False}),
        "between: says nothing": _between("mid mute", {"ca": None}),
        "between: says nothing, may sign": _between("mid mute2", {"ca": None, "signs": True}),
        "between: may not sign": _between("mid ku", {"signs": False}),
        "between: of version 1": _between("mid v1", {"ca": None, "version": 1}),
        "between: expired": _between("mid late", {"days": (-9, -1)}),
        "between: for servers": _between("mid s", {"purposes": ["server"]}),
        "between: for clients": _between("mid c", {"purposes": ["client"]}),
        "between: path length 0": _between("mid zero", {"path_length": 0}),
        "between: path length 0 of the root": _between("root zero", {}, {"path_length": 0}),
        "between: path length 1 of the root": _between("root one", {}, {"path_length": 1}),
        "between: for other addresses": _between("mid oth", {"more": [(others, True)]}),
        "between: for these addresses": _between("mid net", {"more": [(permitted, True)]}),
        "between: the root has expired": _between("root late", {}, {"days": (-9, -1)}),
    }
    sent, kept = _between("unsent", {}), _between("kept", {})
    found["in between, not sent"] = Kind(sent.shown[:1], sent.believed)
    found["in between, believed"] = Kind(kept.shown[:1], kept.shown[1:])
    end = _between("end believed", {})
    found["believed itself, its authority is not"] = Kind(end.shown[:1], end.shown[:1])
    found["a stranger"] = Kind(_issued("stranger", {}, {}).shown, [])
    found["a self-signed stranger"] = Kind([make("odd", ca=True, hosts=HERE)], [])
    namesakes: dict[str, dict[str, Any]] = {
        "with the authority's name": {},
        "with the authority's name, no authority": {"ca": False},
        "with the authority's name, not for signing": {"signs": False},
        "with the authority's name, as Go makes it": {"signs": False, "has_key_identifier": True},
        "with the authority's name, for signing": {"signs": True},
        "with the authority's name, an authority": {"ca": True},
        "with the authority's name, of version 1": {"version": 1, "hosts": ()},
        "with the authority's name, for mail": {"purposes": ["mail"]},
        "with the authority's name, expired": {"days": (-9, -1)},
        "with the authority's name, broken": {"is_genuine": False},
    }
    for name, given in namesakes.items():
        authority = make(name, ca=True, signs=True, country="USA")
        leaf = make(name, authority, **{"hosts": HERE, **given}, country="USA")
        found[name] = Kind([leaf], [authority])
    # Issued by what was believed just now: nothing that was believed may make others believed.
    for name, first in {
        "of one with the authority's name": "with the authority's name, for signing",
        "of one with the authority's name, none": "with the authority's name",
        "of an issued authority": "issued, an authority",
        "of one that is no authority": "issued",
    }.items():
        shown, believed = found[first].shown[0], found[first].believed
        leaf = make(name, shown, hosts=HERE)
        found[name] = Kind([leaf], believed)
        found[f"{name}, both shown"] = Kind([leaf, shown], believed)
    found["by name"] = _issued("by name", {}, {"hosts": ["localhost"]})
    found["by another name"] = _issued("by other", {}, {"hosts": ["example.com"]})
    found["by a wildcard"] = _issued("by star", {}, {"hosts": ["*.localhost"]})
    found["by its common name"] = _issued("localhost", {}, {"hosts": ()})
    for kind in ("by name", "by another name", "by a wildcard", "by its common name"):
        found[kind].host = "localhost"
    return found


@dataclass
class Shelf:
    """The files of all kinds, and a bundle of all who are believed."""

    kinds: dict[str, Kind]
    files: dict[str, tuple[Path, Path]]
    bundles: dict[str, Path]
    """Of each kind, who are believed; certificates of nobody else's if nobody is."""
    bundle: Path


def shelve(directory: Path) -> Shelf:
    """Write certificates, keys and the bundle."""
    made = kinds()
    files, bundles = {}, {}
    bundle = b""
    for number, (name, kind) in enumerate(made.items()):
        cert, key = directory / f"{number}.pem", directory / f"{number}.key"
        cert.write_bytes(b"".join(one.pem for one in kind.shown))
        key.write_bytes(kind.shown[0].key_pem)
        files[name] = cert, key
        believed = kind.believed or made["issued"].believed
        bundles[name] = directory / f"{number}.bundle.pem"
        bundles[name].write_bytes(b"".join(one.pem for one in believed))
        bundle += bundles[name].read_bytes()
    path = directory / "bundle.pem"
    path.write_bytes(bundle)
    return Shelf(made, files, bundles, path)
