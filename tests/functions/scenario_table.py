"""Which test has which scenario of Spider's own tests: storage, caches, recovery, graphs, and the Python client.

Left out, because there is nothing like it here: commit and cleanup tasks, jobs that are registered before they are
started, passwords of resource groups (tokens, see tests/server/auth), drivers and their key-value store, JDBC URLs, one
scheduler that replaces another (servers are equal), and caches in front of the database.
"""

from __future__ import annotations

HERE = "functions/test_scenarios.py"
EDGES = "graphs/test_edge_cases.py"
TWO = "functions/test_two_servers.py"

SCENARIOS: dict[str, list[str]] = {
    # jobs
    "submit to an unknown resource group": [
        "scheduler/test_submit_job.py::test_a_graph_for_a_group_that_does_not_exist_is_refused"
    ],
    "the name of a group is given once": ["scheduler/test_resource_groups.py::test_a_name_is_given_once"],
    "a job of another group": [
        "server/api/test_bad_graphs.py::test_a_job_of_another_resource_group_can_be_neither_seen_nor_changed"
    ],
    "outputs and error, in the right state and in the wrong one": [
        f"{HERE}::test_outputs_and_the_error_are_asked_for_in_every_state"
    ],
    "cancel, from every state, twice, and when it has ended": [
        f"{HERE}::test_a_job_that_has_ended_is_not_cancelled_and_one_that_was_cancelled_stays_so",
        "scheduler/test_cancel.py::test_a_job_that_waits_for_its_retry_can_be_cancelled",
        "scheduler/test_cancel.py::test_cancelling_a_job_twice_is_the_same_as_once",
    ],
    "moves of states that are not legal": [
        "scheduler/test_upstream_bugs.py::test_a_late_failure_after_success_is_refused_and_forgotten"
    ],
    "10,000 independent tasks succeed": [
        "graphs/test_large_graphs.py::test_a_fan_out_and_fan_in_of_10000_tasks_ends_and_no_task_runs_twice"
    ],
    "10,000 tasks are cancelled": [
        "graphs/test_large_graphs.py::test_100000_tasks_are_submitted_run_inspected_and_cancelled_while_others_work"
    ],
    "layers that are wired to each other, also cancelled": [
        "graphs/test_two_servers.py::test_kill_of_a_server_in_mid_graph_costs_nothing_but_repeated_calls",
        "graphs/test_two_servers.py::test_a_whole_graph_is_cancelled_while_both_servers_work_on_it",
    ],
    "tasks that always fail, with retries": [f"{HERE}::test_tasks_that_always_fail_use_their_reruns_and_fail_the_job"],
    "successes that race a cancel": [f"{HERE}::test_successes_that_race_a_cancel_have_one_end"],
    "job retry": [
        f"{TWO}::test_the_failed_part_of_a_job_is_retried_with_its_maps_and_delegates",
        f"{TWO}::test_a_job_that_has_no_retries_left_fails_with_the_error_of_the_function",
        "scheduler/test_upstream_bugs.py::test_a_reset_job_forgets_its_winners_and_can_succeed_again",
    ],
    "retention over, not over, and not ended": [
        f"{HERE}::test_an_old_job_is_purged_with_its_values_and_one_that_runs_is_kept",
        "scheduler/test_retention.py::test_a_job_goes_when_its_retention_is_over",
        "scheduler/test_retention.py::test_deleting_a_job_twice_is_the_same_as_once",
    ],
    "submitting the same graph twice, many at once, with a key": [
        "scheduler/test_submit_job.py::test_the_same_key_gives_the_same_job",
        "scheduler/test_submit_job.py::test_the_same_key_with_another_graph_is_refused",
        "server/test_two_servers.py::test_an_equal_task_is_answered_and_a_repeated_submit_recognised_by_the_other_server",
    ],
    "status and results while it runs": ["server/api/test_values.py::test_only_ended_tasks_are_in_the_results"],
    # instances
    "instances up to the limit and over it": [
        f"{HERE}::test_bots_that_ask_together_get_as_many_instances_as_are_allowed",
        "scheduler/test_instances.py::test_no_more_instances_run_than_were_asked_for",
    ],
    "registration after success is refused": [
        f"{HERE}::test_no_instance_is_registered_after_the_success_and_a_late_one_is_refused"
    ],
    "fail, then a new instance succeeds": [f"{HERE}::test_a_task_fails_with_its_last_instance_and_a_rerun_may_succeed"],
    "of two instances one fails": [f"{HERE}::test_a_failed_instance_leaves_the_task_to_the_other_and_its_value_counts"],
    "instances that end together": [
        f"{TWO}::test_of_two_instances_that_end_together_one_gives_the_value",
        "scheduler/test_instances.py::test_the_first_finisher_feeds_the_children_once",
    ],
    "a diamond, one task after the other": [f"{HERE}::test_a_diamond_hands_its_values_on_one_task_after_the_other"],
    "a diamond with both sides at once": [
        f"{HERE}::test_both_sides_of_a_diamond_that_end_together_release_the_last_task_once",
        f"{EDGES}::test_parents_that_end_at_the_same_moment_release_their_child_once",
    ],
    "the only instance is removed by force": [
        f"{HERE}::test_a_bot_that_loses_the_only_instance_makes_the_task_ready_and_its_report_is_refused"
    ],
    "one of two instances is removed by force": [
        f"{HERE}::test_a_bot_that_loses_one_of_two_instances_leaves_the_other_alone"
    ],
    "soft timeout: enqueued again and kept": [f"{HERE}::test_a_soft_timeout_adds_an_instance_and_keeps_the_first"],
    "a report that comes twice": [
        f"{EDGES}::test_a_completion_that_is_reported_twice_counts_once",
        f"{EDGES}::test_a_failure_that_is_reported_twice_costs_one_rerun",
    ],
    # bots
    "a dead bot: its instances are enqueued again, what has ended stays": [
        f"{HERE}::test_a_bot_that_sends_nothing_for_its_lease_loses_its_instances_and_what_has_ended_stays",
        f"{TWO}::test_kill_of_a_bot_in_mid_job_costs_a_retry_of_what_it_ran",
        "scheduler/test_silence.py::test_a_silent_bot_is_not_dead_before_the_lease_of_its_run_has_ended",
    ],
    "a heartbeat that is known, unknown, of a dead bot, of an old session": [
        "scheduler/test_report.py::test_a_heartbeat_of_nobody_is_refused",
        "scheduler/test_report.py::test_a_heartbeat_of_an_old_session_is_refused",
        "scheduler/test_claim.py::test_a_bot_that_counts_as_dead_must_shake_hands_again",
    ],
    "a dead bot is told of once, and heartbeats race the scan": [
        "scheduler/test_bots.py::test_a_bot_that_was_buried_twice_is_buried_once",
        "scheduler/test_bots.py::test_a_bot_that_was_heard_of_is_not_buried",
        "races/test_races.py::test_a_race_has_one_outcome_that_keeps_every_promise",
    ],
    "a stale session in every call": [
        "server/botapi/test_exchange.py::test_a_process_whose_session_was_taken_over_gets_nothing_more"
    ],
    "a bot with one slot is serial": [f"{HERE}::test_a_bot_with_one_slot_is_serial"],
    "resource groups take turns; the order of jobs": [
        "scheduler/test_claim.py::test_groups_take_turns_at_equal_priority",
        "scheduler/test_claim.py::test_equal_tasks_run_in_the_order_of_their_creation",
    ],
    "an assignment that is lost": [
        "server/botapi/test_exchange.py::test_a_handed_over_reply_that_was_lost_is_given_again",
        "scheduler/test_due.py::test_a_run_that_was_never_started_goes_back_free",
    ],
    "random losses, in the end all run": [
        "bot/test_chaos.py::test_a_stream_of_tasks_through_a_bad_network_runs_once_each_with_every_byte",
        f"{TWO}::test_kill_of_executors_costs_a_rerun_of_what_they_ran",
    ],
    "locality is a preference": ["scheduler/test_claim.py::test_a_task_whose_shared_value_is_near_goes_first"],
    # restarts
    "restart with a running job; registration on a job that has ended": [
        f"{HERE}::test_a_restart_of_the_server_goes_on_with_the_job_and_refuses_what_has_ended",
        f"{TWO}::test_kill_of_a_server_in_mid_job_costs_nothing_but_repeated_calls",
    ],
    # graphs, values and types
    "empty graph, unknown task, wrong position, wrong type, cycle": [
        f"{HERE}::test_a_graph_that_is_wrong_is_refused_and_nothing_is_stored"
    ],
    "outputs that are too many, too few or of another type": [
        f"{HERE}::test_outputs_of_another_number_or_type_fail_the_task"
    ],
    "inputs that are too many, too few or of another type": [
        "functions/test_bad_input.py::test_a_document_whose_inputs_do_not_fit_the_function_fails_before_the_call",
        "functions/test_graph_builder.py::test_wrong_wiring_names_the_line_the_argument_and_both_types",
    ],
    "a graph survives encoding": ["model/test_job.py::test_a_graph_survives_encoding"],
    "a task waits for both parents, values are not copied": [
        "scheduler/test_upstream_bugs.py::test_a_sibling_with_one_parent_starts_although_another_still_waits_for_two"
    ],
    "data: create, get, references and their owners": [
        "scheduler/test_resource_groups.py::test_the_last_reference_takes_the_value_with_it",
        "scheduler/test_resource_groups.py::test_a_group_cannot_read_what_it_does_not_reference",
    ],
    "functions with plain types, tuples, lists, maps and classes": [
        "functions/test_end_to_end.py::test_tuples_lists_dicts_defaults_and_conversions",
        "functions/test_end_to_end.py::test_classes_travel_by_their_fields",
    ],
    "large inputs and outputs": ["functions/test_end_to_end.py::test_large_values_go_through_files"],
    "failure": ["functions/test_end_to_end.py::test_an_exception_is_raised_with_its_class_traceback_bot_and_log"],
    "SIGTERM while a function runs": [
        "bot/slots/test_faults.py::test_a_bot_that_is_told_to_stop_finishes_its_functions"
    ],
    "types and their texts, both ways, with every refusal": [
        "functions/test_types.py::test_every_type_has_a_string_that_the_server_takes",
        "functions/test_types.py::test_what_is_not_a_type_of_values_is_refused_with_a_hint",
        "functions/test_signature.py::test_what_cannot_be_a_task_is_refused_with_the_reason",
    ],
    "a job that fails at random recovers": ["functions/test_end_to_end.py::test_a_rerun_runs_what_failed"],
}
