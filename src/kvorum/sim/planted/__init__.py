"""Planted bugs: each replaces one production function in memory for the duration of a run.

They are classic bugs of the field, and each breaks a guarantee. `make sim-planted` searches for
every bug in three ranges of seeds, and prints how many seeds each search took.
"""

from kvorum.sim.planted.auth import (
    apply_what_was_asked_as_of_an_old_revision,
    keep_the_tokens_of_users_that_are_gone,
    leave_nested_transactions_unchecked,
    permit_by_the_newest_grants,
    take_the_short_way_past_permissions,
)
from kvorum.sim.planted.backups import (
    go_on_at_the_newest_snapshot,
    order_histories_by_the_wall_clock,
    take_any_store_for_the_recorded_one,
)
from kvorum.sim.planted.calls import (
    hash_a_state_that_was_replaced,
    keep_the_pin_of_a_stream_that_is_broken_off,
    overwrite_the_key_at_the_cursor,
    renew_amid_a_transfer,
)
from kvorum.sim.planted.client import (
    ask_a_clock_that_a_suspend_stops,
    count_a_renewal_from_its_answer,
    make_a_write_again,
    rely_on_a_lease_until_a_timer_ends_it,
    resume_a_revision_too_late,
    tell_each_fragment_by_itself,
)
from kvorum.sim.planted.consensus import (
    answer_reads_on_a_removed_leader,
    apply_a_change_on_top_of_a_snapshot,
    commit_an_older_term_by_counting,
    count_votes_of_removed_members,
    forget_the_vote,
    match_a_late_read_index_answer,
    send_in_reverse_order,
    skip_the_read_index_quorum,
)
from kvorum.sim.planted.ending import (
    answer_after_the_drain,
    end_without_handing_over,
    forget_to_answer,
    stay_when_removed,
)
from kvorum.sim.planted.gateway import (
    go_on_with_calls_in_json_whose_client_left,
    send_the_line_of_another_message,
)
from kvorum.sim.planted.proxy import (
    answer_from_the_cache_after_a_put,
    lose_an_event_where_watches_are_shared,
    renew_leases_of_clients_that_left,
)
from kvorum.sim.planted.search import Planted
from kvorum.sim.planted.serving import (
    end_leases_early_after_an_election,
    keep_a_lease_alive_on_a_deposed_leader,
    keep_procedures_of_clients_that_left,
    miss_the_last_compare,
    serve_a_range_across_two_revisions,
    skip_the_queue_of_a_lock,
)
from kvorum.sim.planted.storage import (
    acknowledge_before_fsync,
    apply_twice_after_restart,
    compact_away_a_needed_revision,
    index_ahead_of_effects,
    leave_the_directory_of_a_snapshot_unsynced,
    lose_the_tail_of_the_log,
    run_log_jobs_after_a_failed_one,
)
from kvorum.sim.planted.watching import (
    deliver_an_event_twice,
    lose_an_event_at_catch_up,
    tell_progress_too_soon,
)

PLANTED: dict[str, Planted] = {
    each.__name__: each
    for each in (
        acknowledge_before_fsync,
        forget_the_vote,
        commit_an_older_term_by_counting,
        skip_the_read_index_quorum,
        match_a_late_read_index_answer,
        lose_the_tail_of_the_log,
        apply_twice_after_restart,
        index_ahead_of_effects,
        lose_an_event_at_catch_up,
        deliver_an_event_twice,
        compact_away_a_needed_revision,
        keep_a_lease_alive_on_a_deposed_leader,
        miss_the_last_compare,
        count_votes_of_removed_members,
        serve_a_range_across_two_revisions,
        tell_progress_too_soon,
        skip_the_queue_of_a_lock,
        end_leases_early_after_an_election,
        keep_procedures_of_clients_that_left,
        answer_after_the_drain,
        end_without_handing_over,
        forget_to_answer,
        stay_when_removed,
        run_log_jobs_after_a_failed_one,
        send_in_reverse_order,
        keep_the_pin_of_a_stream_that_is_broken_off,
        overwrite_the_key_at_the_cursor,
        hash_a_state_that_was_replaced,
        renew_amid_a_transfer,
        apply_a_change_on_top_of_a_snapshot,
        answer_reads_on_a_removed_leader,
        leave_the_directory_of_a_snapshot_unsynced,
        apply_what_was_asked_as_of_an_old_revision,
        leave_nested_transactions_unchecked,
        permit_by_the_newest_grants,
        keep_the_tokens_of_users_that_are_gone,
        take_the_short_way_past_permissions,
        go_on_with_calls_in_json_whose_client_left,
        send_the_line_of_another_message,
        resume_a_revision_too_late,
        tell_each_fragment_by_itself,
        count_a_renewal_from_its_answer,
        make_a_write_again,
        ask_a_clock_that_a_suspend_stops,
        rely_on_a_lease_until_a_timer_ends_it,
        answer_from_the_cache_after_a_put,
        lose_an_event_where_watches_are_shared,
        renew_leases_of_clients_that_left,
        order_histories_by_the_wall_clock,
        go_on_at_the_newest_snapshot,
        take_any_store_for_the_recorded_one,
    )
}
"""All planted bugs by name; the first fifteen measure the simulator."""
