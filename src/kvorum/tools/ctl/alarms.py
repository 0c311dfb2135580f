"""`alarm`: list and disarm the members' alarms."""

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError
from kvorum.tools.ctl.invocation import CtlInvocation

NAMES = {0: "NONE", 1: "NOSPACE", 2: "CORRUPT"}


def list_all(invocation: CtlInvocation) -> None:
    """List all alarms."""
    if invocation.arguments:
        raise CommandError("alarm list command accepts no arguments", BAD_ARGUMENTS)
    with invocation.client() as client:
        answer = invocation.ask(client, rpcs.ALARM, pb.AlarmRequest(), pb.AlarmResponse)
    _show(invocation, answer)


def disarm(invocation: CtlInvocation) -> None:
    """Disarm all alarms one after the other, and show them."""
    if invocation.arguments:
        raise CommandError("alarm disarm command accepts no arguments", BAD_ARGUMENTS)
    ended = pb.AlarmResponse()
    with invocation.client() as client:
        found = invocation.ask(client, rpcs.ALARM, pb.AlarmRequest(), pb.AlarmResponse)
        for alarm in found.alarms:
            request = pb.AlarmRequest(
                action="DEACTIVATE", memberID=alarm.memberID, alarm=alarm.alarm
            )
            answer = invocation.ask(client, rpcs.ALARM, request, pb.AlarmResponse)
            ended.alarms.extend(answer.alarms)
    _show(invocation, ended)


def name_of(kind: int) -> str:
    """Return an alarm's name, or its number if it is unknown."""
    return NAMES.get(kind, str(kind))


def _show(invocation: CtlInvocation, answer: pb.AlarmResponse) -> None:
    output = invocation.output

    def simple(found: pb.AlarmResponse) -> None:
        for alarm in found.alarms:
            output.line(f"memberID:{alarm.memberID} alarm:{name_of(alarm.alarm)}")

    def fields(found: pb.AlarmResponse) -> None:
        output.header_fields(found.header)
        for alarm in found.alarms:
            output.id_field("MemberID", alarm.memberID)
            output.line(f'"AlarmType" : {name_of(alarm.alarm)}')
            output.line()

    output.show(answer, simple, fields=fields)
