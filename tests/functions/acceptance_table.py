"""Which test has which acceptance scenario of jobs, shared values and instances: those that catch real bugs.

A scenario is shown on SQLite, PostgreSQL and MariaDB, by one test on all of them or by several tests together.
"""

from __future__ import annotations

BUGS = "scheduler/test_upstream_bugs.py"
CRASH = "crash/test_crash.py"
GROUPS = "scheduler/test_resource_groups.py"
INSTANCES = "scheduler/test_instances.py"
RACES = "races/test_races.py::test_a_race_has_one_outcome_that_keeps_every_promise"
MODEL = "scheduler/test_shared_model.py::test_references_are_exact_after_a_thousand_random_operations"
SIMULATION = [
    "sim/test_simulation.py::test_every_seed_keeps_all_promises_on_sqlite",
    "sim/test_simulation.py::test_every_seed_keeps_all_promises_on_a_server",
]

ACCEPTANCE: dict[str, list[str]] = {
    # messages and crashes
    "every handler twice: the state is the same, and a job is finished once": [
        f"{BUGS}::test_a_duplicate_completion_releases_children_and_finishes_once",
        f"{BUGS}::test_a_duplicate_failure_costs_one_rerun_only",
        f"{BUGS}::test_a_repeat_of_an_extension_does_not_keep_the_graph_from_finishing",
    ],
    "every handler at every crash point": [
        f"{CRASH}::test_neither_a_crash_nor_a_lost_connection_at_any_statement_leaves_anything_half_done",
    ],
    "random graphs with failures, duplicate reports, bot deaths, extensions and cancels": SIMULATION,
    "restart of the server in the midst of everything": [
        *SIMULATION,
        "functions/test_scenarios.py::test_a_restart_of_the_server_goes_on_with_the_job_and_refuses_what_has_ended",
        "graphs/test_two_servers.py::test_kill_of_a_server_in_mid_graph_costs_nothing_but_repeated_calls",
    ],
    # graphs
    "a diamond, and a sibling with a single parent": [
        f"{BUGS}::test_a_sibling_with_one_parent_starts_although_another_still_waits_for_two",
        f"{BUGS}::test_all_parents_that_succeed_at_the_same_instant_release_the_child_once",
    ],
    "retry after partial success": [
        f"{BUGS}::test_a_reset_job_forgets_its_winners_and_can_succeed_again",
        f"{BUGS}::test_a_job_is_retried_although_its_tasks_have_no_reruns",
    ],
    "an extension at the same time as the last leaf ends": [
        RACES,
        f"{BUGS}::test_an_extension_that_races_with_the_graphs_finish_is_refused",
        f"{BUGS}::test_an_extension_that_races_with_a_completion_loses_no_edge",
    ],
    "10,000 children of one task, and 10,000 parents of one": [
        f"{BUGS}::test_ten_thousand_children_and_ten_thousand_parents"
    ],
    "the deadline passes while a task waits, and while it runs": [
        f"{BUGS}::test_a_deadline_that_passes_while_waiting_blocks_but_spares_the_descendants",
        f"{BUGS}::test_a_deadline_that_passes_while_running_ends_the_run_and_stops_the_bot",
    ],
    "a rerun unblocks the job": [
        f"{BUGS}::test_a_success_after_a_recorded_failure_releases_the_dependents_and_unblocks"
    ],
    "a cancel races a success": [
        RACES,
        "scheduler/test_cancel.py::test_a_cancel_that_loses_the_race_against_the_end_changes_nothing",
    ],
    # instances
    "two bots finish the same task": [
        f"{INSTANCES}::test_the_first_finisher_wins_and_the_other_is_stopped",
        f"{INSTANCES}::test_the_first_finisher_feeds_the_children_once",
        f"{INSTANCES}::test_the_loser_cannot_change_the_result",
    ],
    "a task fails with its last instance only": [
        f"{INSTANCES}::test_a_failing_instance_does_not_fail_the_task_while_another_works",
        f"{INSTANCES}::test_a_task_fails_with_its_last_instance",
        f"{BUGS}::test_the_last_failure_does_not_fail_a_task_that_a_sibling_may_still_finish",
    ],
    "a soft timeout adds one instance, on another bot, up to the limit": [
        f"{INSTANCES}::test_a_straggler_gets_a_second_instance_on_another_bot",
        f"{INSTANCES}::test_no_more_instances_run_than_were_asked_for",
        f"{INSTANCES}::test_two_stragglers_of_one_task_that_are_due_together_are_granted_one_instance",
    ],
    "a lost bot ends its instance and no other, and costs one retry": [
        f"{INSTANCES}::test_a_lost_instance_does_not_stop_the_other",
        f"{INSTANCES}::test_instances_that_are_lost_together_cost_one_retry",
    ],
    "a task is started only if it is ready": [f"{BUGS}::test_a_task_that_waits_or_has_ended_is_never_started"],
    # shared values
    "a shared value is dropped by one job while another uses it": [
        f"{GROUPS}::test_a_value_lives_while_another_job_uses_it_although_the_first_one_drops_it",
        RACES,
    ],
    "the last reference deletes the value, also if it is dropped twice": [
        f"{GROUPS}::test_the_last_reference_takes_the_value_with_it",
        f"{GROUPS}::test_dropping_a_reference_twice_is_the_same_as_once",
    ],
    "a job references what its tasks read and what they write": [
        f"{GROUPS}::test_a_job_keeps_the_values_that_its_tasks_read",
        f"{GROUPS}::test_a_job_keeps_the_values_that_its_tasks_wrote",
    ],
    "a value is read by those who reference it alone": [
        f"{GROUPS}::test_a_group_cannot_read_what_it_does_not_reference",
        f"{GROUPS}::test_a_group_reads_what_its_jobs_reference",
    ],
    "the owner of a new value must exist, and the value is created once": [
        f"{GROUPS}::test_an_owner_must_exist",
        f"{GROUPS}::test_a_value_whose_creation_is_in_doubt_is_created_once",
    ],
    "localities are a preference that is noted and forgotten": [
        f"{GROUPS}::test_localities_are_noted_and_forgotten",
        "server/test_localities.py::test_tasks_of_an_idle_local_bot_run_there",
        "server/test_localities.py::test_nobody_waits_for_a_busy_local_bot",
    ],
    "a resource group is deleted under running jobs, with all that it owns": [
        f"{GROUPS}::test_a_group_is_deleted_under_running_jobs",
        f"{GROUPS}::test_the_values_of_other_groups_survive",
    ],
    "reference counts are exact after 1,000 random operations beside a model": [MODEL],
    "kill -9 of each process while shared values are used": [
        *SIMULATION,
        "functions/test_shared_crash.py::test_a_map_over_a_shared_value_survives_servers_that_are_killed",
        "functions/test_shared_crash.py::test_a_group_is_deleted_under_a_running_function_while_servers_are_killed",
    ],
}
