"""Short descriptions of clients' requests and their answers, for the trace."""

from typing import Any

from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import (
    CompactionRequest,
    Compare,
    DeleteRangeRequest,
    DeleteRangeResponse,
    LeaseGrantRequest,
    LeaseGrantResponse,
    LeaseKeepAliveRequest,
    LeaseKeepAliveResponse,
    LeaseRevokeRequest,
    LeaseTimeToLiveRequest,
    PutRequest,
    RangeRequest,
    RangeResponse,
    RequestOp,
    TxnRequest,
    TxnResponse,
)
from kvorum.api.pb.v3electionpb import (
    CampaignRequest,
    CampaignResponse,
    LeaderRequest,
    LeaderResponse,
    ProclaimRequest,
    ResignRequest,
)
from kvorum.api.pb.v3lockpb import LockRequest, LockResponse, UnlockRequest
from kvorum.sim.trace import shown

_SIGNS = {Compare.EQUAL: "=", Compare.GREATER: ">", Compare.LESS: "<", Compare.NOT_EQUAL: "!="}


def describe_request(request: Any) -> str:
    """Return a request in a few words."""
    if isinstance(request, PutRequest):
        lease = f" lease {request.lease:x}" if request.lease else ""
        return f"{shown(request.key)}={shown(request.value)}{lease}"
    if isinstance(request, RangeRequest):
        return _range(request)
    if isinstance(request, DeleteRangeRequest):
        return (
            "-" + shown(request.key) + (f"..{shown(request.range_end)}" * bool(request.range_end))
        )
    if isinstance(request, TxnRequest):
        return _txn(request)
    if isinstance(request, CompactionRequest):
        return f"{request.revision}{' physical' if request.physical else ''}"
    if isinstance(request, LeaseGrantRequest):
        return f"{request.TTL}s"
    if isinstance(request, LockRequest):
        return f"{shown(request.name)} lease {request.lease:x}"
    if isinstance(request, CampaignRequest):
        return f"{shown(request.name)}={shown(request.value)} lease {request.lease:x}"
    if isinstance(request, UnlockRequest):
        return shown(request.key)
    if isinstance(request, LeaderRequest):
        return shown(request.name)
    if isinstance(request, ProclaimRequest | ResignRequest):
        return f"{shown(request.leader.key)}@{request.leader.rev}"
    if isinstance(request, LeaseKeepAliveRequest | LeaseRevokeRequest | LeaseTimeToLiveRequest):
        return f"{request.ID:x}"
    return str(request).strip().replace("\n", " ")


def _range(request: RangeRequest) -> str:
    text = shown(request.key)
    if request.range_end:
        text += f"..{shown(request.range_end)}"
    if request.limit:
        text += f" limit {request.limit}"
    if request.revision:
        text += f" at {request.revision}"
    return text + (" serializable" if request.serializable else "")


def _txn(request: TxnRequest) -> str:
    compares = [
        f"if {shown(each.key)}.{Compare.CompareTarget.Name(each.target).lower()}"
        f"{_SIGNS[each.result]}{_operand(each)}"
        for each in request.compare
    ]
    return " ".join(compares + [_operation(each) for each in request.success])


def _operand(compare: Compare) -> str:
    value = getattr(compare, compare.WhichOneof("target_union") or "mod_revision")
    return shown(value) if isinstance(value, bytes) else str(value)


def _operation(operation: RequestOp) -> str:
    return describe_request(getattr(operation, operation.WhichOneof("request") or ""))


def describe_result(result: bytes | Status | None, response: Any) -> str:
    """Return an answer in a few words."""
    if result is None:
        return "lost"
    if isinstance(result, Status):
        return result.text
    text = f"r{response.header.revision} t{response.header.raft_term}"
    if isinstance(response, RangeResponse):
        text += "".join(f" {shown(kv.value)}@{kv.mod_revision}" for kv in response.kvs)
    elif isinstance(response, TxnResponse):
        text += " succeeded" if response.succeeded else " failed"
    elif isinstance(response, DeleteRangeResponse):
        text += f" deleted {response.deleted}"
    elif isinstance(response, LeaseGrantResponse):
        text += f" lease {response.ID:x} {response.TTL}s"
    elif isinstance(response, LeaseKeepAliveResponse):
        text += f" {response.TTL}s"
    elif isinstance(response, LockResponse):
        text += f" {shown(response.key)}"
    elif isinstance(response, CampaignResponse):
        text += f" {shown(response.leader.key)}@{response.leader.rev}"
    elif isinstance(response, LeaderResponse):
        text += f" {shown(response.kv.key)}={shown(response.kv.value)}"
    return text


def outcome(result: bytes | Status | None) -> str:
    """Return the outcome of a request whose answer does not matter."""
    if result is None:
        return "is not answered"
    return result.text if isinstance(result, Status) else "is done"
