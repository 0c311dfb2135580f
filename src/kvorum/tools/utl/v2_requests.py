"""Translate requests of etcd's version 2 in a log; etcd 3.5 still writes them about the cluster.

A member publishes its name and client URLs with such a request, and the leader the cluster's
version. Both have a form of version 3 with the same effect, which replaces them in the log. No
other request of version 2 affects a database; an empty entry replaces it.
"""

import json
import re

from kvorum.api.codec import read_varint
from kvorum.api.pb.etcdserverpb import InternalRaftRequest
from kvorum.raft.entries import Entry, EntryType
from kvorum.state.apply.incompatible_entries import V2_METHOD, is_v2_request

_PATH, _VALUE = 0x1A, 0x22
_ATTRIBUTES = re.compile(r"/0/members/([0-9a-f]{1,16})/attributes")
_VERSION = "/0/version"


def translate_entry(entry: Entry) -> Entry:
    """Return an entry with its request translated to version 3."""
    data = entry.data
    if entry.type != EntryType.NORMAL or not is_v2_request(data):
        return entry
    return Entry(entry.type, entry.term, entry.index, _translate(data))


def _translate(data: bytes) -> bytes:
    number, offset = read_varint(data, 1)
    texts = {}
    # Method, path and value come first, in the order of their field numbers.
    for tag in (V2_METHOD, _PATH, _VALUE):
        if offset < len(data) and data[offset] == tag:
            length, start = read_varint(data, offset + 1)
            offset = start + length
            texts[tag] = data[start:offset].decode()
    path, value = texts.get(_PATH, ""), texts.get(_VALUE, "")
    request = InternalRaftRequest()
    request.header.ID = number
    if texts.get(V2_METHOD) != "PUT":
        return b""
    if path == _VERSION:
        request.cluster_version_set.ver = value
    elif match := _ATTRIBUTES.fullmatch(path):
        attributes = json.loads(value)
        change = request.cluster_member_attr_set
        change.member_ID = int(match[1], 16)
        change.member_attributes.name = attributes.get("name", "")
        change.member_attributes.client_urls.extend(attributes.get("clientURLs") or ())
    else:
        return b""
    return request.SerializeToString()
