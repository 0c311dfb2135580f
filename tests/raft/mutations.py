"""The rules of Raft, each with a line that keeps it and one that breaks it.

Those of elections are in `election_mutations`.
"""

from typing import NamedTuple


class Mutation(NamedTuple):
    """In a module of the core, `line` occurs once; `instead` breaks the rule."""

    name: str
    module: str
    line: str
    instead: str


MUTATIONS = [
    # Replication and commit.
    Mutation(
        "entries of an old term are committed by counting",
        "log",
        "        if term and index > self.committed and self.matches(term, index):\n",
        "        if term and self.committed < index <= self.last_index():\n",
    ),
    Mutation(
        "the own entries count before they are durable",
        "replication",
        "    last = raft.log.append(entries)\n",
        "    last = raft.log.append(entries)\n"
        "    raft.tracker.progress[raft.id].maybe_update(last)\n    maybe_commit(raft)\n",
    ),
    Mutation(
        "peers are served in any order",
        "tracker",
        "        self.progress = {node: progress[node] for node in sorted(progress)}\n",
        "        self.progress = {node: progress[node] for node in sorted(progress)[::-1]}\n",
    ),
    Mutation(
        "a commit is pushed to every peer that answers",
        "progress",
        "        return commit > self.sent_commit and self.sent_commit < self.next - 1\n",
        "        return True\n",
    ),
    Mutation(
        "a commit is never pushed after an answer",
        "progress",
        "        return commit > self.sent_commit and self.sent_commit < self.next - 1\n",
        "        return False\n",
    ),
    Mutation(
        "the commit that was sent stays when probing",
        "progress",
        "        self.next = max(self.match, snapshot) + 1\n"
        "        self.sent_commit = min(self.sent_commit, self.next - 1)\n",
        "        self.next = max(self.match, snapshot) + 1\n",
    ),
    Mutation(
        "heartbeats do not count as telling the commit",
        "replication",
        "            peer.sent_commit = commit\n",
        "            pass\n",
    ),
    Mutation(
        "heartbeats commit what the peer may not have",
        "replication",
        "            commit = min(peer.match, committed)\n",
        "            commit = committed\n",
    ),
    Mutation(
        "an empty probe pauses",
        "progress",
        "        elif self.state == ProgressState.PROBE:\n            if count:\n",
        "        elif self.state == ProgressState.PROBE:\n            if True:\n",
    ),
    Mutation(
        "a probe with entries does not pause",
        "progress",
        "            if count:\n                self.flow_paused = True\n",
        "            if False:\n                self.flow_paused = True\n",
    ),
    Mutation(
        "a full window does not pause",
        "progress",
        "            self.flow_paused = self.inflights.full()\n",
        "            self.flow_paused = False\n",
    ),
    Mutation(
        "a full window still sends entries",
        "replication",
        "    if peer.state != ProgressState.REPLICATE or not peer.inflights.full():\n",
        "    if peer.state != ProgressState.REPLICATE or True:\n",
    ),
    Mutation(
        "a heartbeat response does not resume",
        "leader",
        "    peer.flow_paused = False\n",
        "    pass\n",
    ),
    Mutation(
        "an acknowledgement does not resume",
        "progress",
        "        self.next = max(self.next, index + 1)\n        self.flow_paused = False\n",
        "        self.next = max(self.next, index + 1)\n",
    ),
    Mutation(
        "an acknowledgement frees nothing of the window",
        "leader",
        "        peer.inflights.free_up_to(index)\n",
        "        pass\n",
    ),
    Mutation(
        "the window has no limit in bytes",
        "inflights",
        " or 0 < self.bytes_max <= self.bytes\n",
        "\n",
    ),
    Mutation(
        "a heartbeat response does not probe",
        "leader",
        "    if peer.match < raft.log.last_index() or peer.state == ProgressState.PROBE:\n",
        "    if peer.match < raft.log.last_index():\n",
    ),
    Mutation(
        "an answer at the match does not end probing",
        "leader",
        "    if not peer.maybe_update(index) and not (probing and peer.match == index):\n",
        "    if not peer.maybe_update(index):\n",
    ),
    Mutation(
        "the leader does not use the term of a hint",
        "leader",
        "    if message.log_term:\n",
        "    if False:\n",
    ),
    Mutation(
        "the follower gives no hint by term",
        "follower",
        "        min(index, log.last_index()), message.log_term\n",
        "        min(index, log.last_index()), 1 << 64\n",
    ),
    Mutation(
        "next falls to the match",
        "progress",
        "            self.next = max(min(rejected, hint + 1), self.match + 1)\n",
        "            self.next = max(min(rejected, hint + 1), 1)\n",
    ),
    Mutation(
        "stale rejections of probes are believed",
        "progress",
        "            if self.next - 1 != rejected:\n                return False\n",
        "",
    ),
    Mutation(
        "stale rejections in replication are believed",
        "progress",
        "            if rejected <= self.match:\n                return False\n",
        "",
    ),
    Mutation(
        "an append below the commit is handled",
        "follower",
        "    if index < log.committed:\n",
        "    if False:\n",
    ),
    Mutation(
        "a follower commits more than it was sent",
        "log",
        "        self.commit_to(min(committed, last_new))\n",
        "        self.commit_to(min(committed, self.last_index()))\n",
    ),
    Mutation(
        "slices overshoot across storage and unstable",
        "log",
        "        rest = self.unstable.slice(offset, high, size_max - size)\n",
        "        rest = self.unstable.slice(offset, high, size_max)\n",
    ),
    Mutation(
        "slices take one entry too many",
        "log",
        "        if len(rest) == 1 and size + rest[0].size > size_max:\n",
        "        if False:\n",
    ),
    Mutation(
        "truncation within the unstable part keeps what was handed out",
        "unstable",
        "            self.offset_in_progress = min(self.offset_in_progress, first)\n",
        "            pass\n",
    ),
    Mutation(
        "replaced entries are not written again",
        "unstable",
        "            self.offset = self.offset_in_progress = first\n",
        "            self.offset = first\n",
    ),
    # Proposals.
    Mutation(
        "what is uncommitted has no limit",
        "replication",
        " and size and raft.uncommitted_size + size > limit:\n",
        " and False:\n",
    ),
    Mutation(
        "a proposal above the limit is never taken",
        "replication",
        "    if limit and raft.uncommitted_size and size",
        "    if limit and size",
    ),
    Mutation(
        "a removed leader takes proposals",
        "leader",
        "    if raft.id not in raft.tracker.progress:\n",
        "    if False:\n",
    ),
    Mutation(
        "a forwarded proposal lacks its sender",
        "core",
        "            message.sender = self.id\n",
        "            pass\n",
    ),
    Mutation(
        "proposals are forwarded though that is switched off",
        "follower",
        "    if raft.config.disable_proposal_forwarding:\n",
        "    if False:\n",
    ),
    # Membership.
    Mutation(
        "a new leader does not wait for changes of its log",
        "core",
        "        self.pending_conf_index = self.log.last_index()\n",
        "        self.pending_conf_index = 0\n",
    ),
    Mutation(
        "a second change while one is unapplied",
        "leader",
        "    if raft.pending_conf_index > raft.log.applied:\n",
        "    if False:\n",
    ),
    Mutation(
        "a new configuration commits nothing",
        "membership",
        "    if maybe_commit(raft):\n",
        "    if False:\n",
    ),
    Mutation(
        "new peers are not probed",
        "membership",
        "                maybe_send_append(raft, node, peer, send_if_empty=False)\n",
        "                pass\n",
    ),
    Mutation(
        "a new peer starts at the wrong entry",
        "changer",
        "next_index=max(self._last_index, 1))\n",
        "next_index=max(self._last_index, 1) + 1)\n",
    ),
    Mutation(
        "a new peer does not count as active",
        "changer",
        "        peer.recent_active = True\n",
        "        pass\n",
    ),
    Mutation(
        "a joint configuration is left too early",
        "core",
        "            and self.log.applied >= self.pending_conf_index\n",
        "",
    ),
    Mutation(
        "a joint configuration needs one majority only",
        "tracker",
        "([progress[node].match for node in self._outgoing])\n",
        "([progress[node].match for node in self._incoming])\n",
    ),
    Mutation(
        "a removed leader does not step down though told so",
        "membership",
        "        if raft.config.step_down_on_removal:\n",
        "        if False:\n",
    ),
    Mutation(
        "a change is told of before it is applied",
        "leader",
        "        raft.unannounced_changes.append(index)\n",
        "        pass\n",
    ),
    Mutation(
        "a new leader tells of the changes it found",
        "core",
        "            self.unannounced_changes = membership.uncommitted_changes(self)\n",
        "            pass\n",
    ),
    Mutation(
        "heartbeats tell of a change before it is applied",
        "replication",
        "            commit = min(peer.match, committed)\n",
        "            commit = min(peer.match, raft.log.committed)\n",
    ),
    # Transfer.
    Mutation(
        "no call to a transferee that has caught up",
        "leader",
        "    if node == raft.lead_transferee and peer.match == raft.log.last_index():\n",
        "    if False:\n",
    ),
    Mutation(
        "proposals during a transfer",
        "leader",
        "    if raft.lead_transferee:\n        raft.logger.debug(\n",
        "    if False:\n        raft.logger.debug(\n",
    ),
    Mutation(
        "a transfer never times out",
        "core",
        "            if self.role == Role.LEADER:\n                self.lead_transferee = NONE\n",
        "            pass\n",
    ),
    Mutation(
        "the same target again restarts a transfer",
        "leader",
        "        if raft.lead_transferee == target:\n",
        "        if False:\n",
    ),
    Mutation(
        "a transfer does not get a whole timeout",
        "leader",
        "    raft.election_elapsed = 0\n",
        "    pass\n",
    ),
    Mutation(
        "a transfer to a learner",
        "leader",
        "    if peer.is_learner:\n",
        "    if False:\n",
    ),
    Mutation(
        "a transfer outlives its target",
        "membership",
        "        raft.lead_transferee = NONE\n",
        "        pass\n",
    ),
    # Snapshots.
    Mutation(
        "entries are handed out before a snapshot",
        "log",
        "            and self.unstable.snapshot is None\n",
        "",
    ),
    Mutation(
        "an inactive peer gets a snapshot",
        "replication",
        "    if not peer.recent_active:\n",
        "    if False:\n",
    ),
    Mutation(
        "a failed snapshot counts as delivered",
        "leader",
        "        peer.pending_snapshot = 0  # otherwise the probe would start after it\n",
        "        pass\n",
    ),
    Mutation(
        "no pause after the status of a snapshot",
        "leader",
        "    peer.flow_paused = True\n",
        "    pass\n",
    ),
    Mutation(
        "recovery waits for the snapshot that was sent",
        "leader",
        "    elif peer.match + 1 >= raft.log.first_index():\n",
        "    elif peer.match >= peer.pending_snapshot:\n",
    ),
    Mutation(
        "a snapshot of what is there does not commit",
        "membership",
        "        log.commit_to(index)\n",
        "        pass\n",
    ),
    Mutation(
        "a snapshot of what is there is restored",
        "membership",
        "    if log.matches(term, index):\n",
        "    if False:\n",
    ),
    Mutation(
        "a snapshot without this node is restored",
        "membership",
        "    if raft.id not in (*state.voters, *state.learners, *state.voters_outgoing):\n",
        "    if False:\n",
    ),
    Mutation(
        "a change is applied on top of a snapshot's",
        "membership",
        "    if raft.log.unstable.snapshot is not None:\n",
        "    if False:\n",
    ),
    # Storage and application.
    Mutation(
        "a commit must be synced",
        "rawnode",
        "hard_state[:2] != self._hard_state[:2]),\n",
        "hard_state != self._hard_state),\n",
    ),
    Mutation(
        "a vote need not be synced",
        "rawnode",
        "hard_state[:2] != self._hard_state[:2]),\n",
        "hard_state[:1] != self._hard_state[:1]),\n",
    ),
    Mutation(
        "unstable entries are applied with asynchronous writes",
        "rawnode",
        "            log.next_committed(not self._async),\n",
        "            log.next_committed(True),\n",
    ),
    Mutation(
        "a stale write is believed",
        "core",
        "                # Later entries may have replaced the written ones at the same indexes.\n",
        "                self.log.unstable.stable_to(message.log_term, message.index)\n",
    ),
    Mutation(
        "a write of another term is believed",
        "unstable",
        "        if ours != term:\n",
        "        if False:\n",
    ),
    Mutation(
        "a stale write does not acknowledge its snapshot",
        "core",
        "                # A snapshot holds only committed entries, so its term does not matter.\n"
        "                self.applied_snapshot(message.snapshot)\n",
        "                pass\n",
    ),
    Mutation(
        "a write names only its own batch",
        "rawnode",
        "        if not unstable and snapshot is None:\n",
        "        if not raft.log.unstable.has_next_entries() and snapshot is None:\n",
    ),
    Mutation(
        "promises leave before the write",
        "rawnode",
        "raft.messages + self._storage_messages(ready)\n",
        "raft.messages + raft.messages_after_append + self._storage_messages(ready)\n",
    ),
    Mutation(
        "no pause while much is being applied",
        "log",
        "        self.applying_paused = (\n",
        "        self.applying_paused = False and (\n",
    ),
    Mutation(
        "no limit to what is applied at once",
        "log",
        "            return self.slice(low, high, size_max)\n",
        "            return self.slice(low, high, NO_LIMIT)\n",
    ),
    Mutation(
        "what was applied before a restart is forgotten",
        "core",
        "            self.log.applied_to(config.applied, 0)\n",
        "            pass\n",
    ),
    # Reads.
    Mutation(
        "a read is answered before a quorum confirms",
        "reads",
        "    confirmed = raft.tracker.quorum_index(raft.read_only.acknowledged)\n",
        "    confirmed = max(raft.read_only.acknowledged.values())\n",
    ),
    Mutation(
        "a leader without a vote answers reads",
        "reads",
        "    if not raft.tracker.is_voter(raft.id):\n",
        "    if False:\n",
    ),
    Mutation(
        "a leader without a vote answers the reads that wait",
        "membership",
        "        drop_all(raft)\n",
        "        pass\n",
    ),
    Mutation(
        "a follower of any term confirms its read",
        "reads",
        "        message.log_term == raft.term\n",
        "        message.log_term > 0\n",
    ),
    Mutation(
        "any follower confirms its read alone",
        "reads",
        "        and raft.tracker.quorum_index({raft.id: 1, message.sender: 1}) > 0\n",
        "        and True\n",
    ),
    Mutation(
        "a node vouches for the term of another's request",
        "follower",
        "raft.term if is_own else message.log_term",
        "raft.term",
    ),
    Mutation(
        "heartbeats do not carry the newest read",
        "replication",
        "    context = raft.read_only.context()\n",
        '    context = b""\n',
    ),
    Mutation(
        "a new leader answers reads before its first commit",
        "reads",
        "    elif not _committed_in_term(raft):\n",
        "    elif False:\n",
    ),
    Mutation(
        "reads that waited are never released",
        "leader",
        "        reads.release_pending(raft)\n",
        "        pass\n",
    ),
    Mutation(
        "read numbers go on in a new leadership",
        "core",
        "        self.read_only = ReadOnly()\n\n    def become_follower",
        "\n    def become_follower",
    ),
    Mutation(
        "an echo of what was never asked confirms reads",
        "read_only",
        "        number = min(number, self._newest())\n",
        "        pass\n",
    ),
]
