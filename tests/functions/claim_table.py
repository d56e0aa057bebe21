"""Which test has which promise of the SDK, in the order of docs/functions.md."""

from __future__ import annotations

HERE = "functions/test_claims.py"
LIVE = "functions/test_end_to_end.py"
BLOCK = "sdk/test_new_job.py"
GRAPH = "functions/test_graph_builder.py"
TASK = "functions/test_task_function.py"
VALUES = "functions/test_values.py"
TYPES = "functions/test_types.py"
SUBMIT = "executor/test_submit.py"
BAD = "functions/test_bad_input.py"
POOL = "functions/test_executor_on_bots.py"

CLAIMS: dict[str, list[str]] = {
    # outside of a job
    "a task is a plain function, on a bot too": [
        f"{TASK}::test_outside_of_a_job_a_task_is_the_plain_function",
        f"{SUBMIT}::test_a_call_of_a_task_function_on_a_bot_is_a_plain_call",
        "executor/test_context.py::test_outside_of_a_bot_the_context_is_local",
    ],
    "options override": [
        f"{TASK}::test_options_override_and_are_checked",
        f"{HERE}::test_options_override_the_label_and_the_dimensions_of_a_call",
    ],
    "mypy and pyright check the wiring": [
        "functions/test_typing.py::test_mypy_accepts_right_wiring_and_finds_every_wrong_one",
        "functions/test_typing.py::test_pyright_accepts_right_wiring_and_finds_every_wrong_one",
    ],
    # inside a block
    "calls are recorded and submitted at the end": [
        f"{BLOCK}::test_a_block_submits_its_graph_at_its_end_and_results_are_decoded"
    ],
    "an exception submits nothing": [f"{BLOCK}::test_an_exception_in_the_block_is_passed_on"],
    "an empty block": [f"{BLOCK}::test_an_empty_block", f"{BLOCK}::test_an_empty_async_block_submits_nothing"],
    "a nested block": [f"{BLOCK}::test_a_nested_block_even_if_its_error_is_caught"],
    "a call from another thread": [
        f"{BLOCK}::test_a_call_from_another_thread_with_this_context",
        f"{BLOCK}::test_a_handle_in_another_thread",
        f"{BLOCK}::test_a_thread_without_the_context_calls_the_plain_function",
    ],
    "a result inside": [f"{BLOCK}::test_asking_for_a_result_inside", f"{BLOCK}::test_client_submit_and_map_inside"],
    "a handle used as a value names the line": [
        "functions/test_handles.py::test_a_handle_used_as_a_value_raises_and_names_the_line",
        f"{BLOCK}::test_a_handle_used_as_a_value",
    ],
    "a handle in another job": [
        f"{BLOCK}::test_results_of_another_job_are_refused",
        f"{GRAPH}::test_wrong_wiring_names_the_line_the_argument_and_both_types",
    ],
    "the defaults of the submitter": [
        f"{GRAPH}::test_the_defaults_of_the_submitter_and_keywords_are_bound",
        f"{HERE}::test_the_submitters_default_counts_and_not_that_of_the_bot",
    ],
    "what is refused at decoration": [
        f"{TASK}::test_what_a_bot_could_not_call_is_refused_at_decoration",
        "functions/test_signature.py::test_what_cannot_be_a_task_is_refused_with_the_reason",
        f"{HERE}::test_a_function_inside_of_a_test_is_refused_with_the_reason",
    ],
    "static methods, partials, async def": [
        f"{TASK}::test_static_methods_work_with_the_decorators_in_either_order",
        f"{HERE}::test_static_methods_coroutines_and_partials_run_on_bots",
    ],
    # lists of results
    "one gathered input, at any depth": [
        f"{GRAPH}::test_a_list_of_results_is_one_gathered_input",
        f"{GRAPH}::test_results_and_values_may_be_mixed_at_any_depth",
        f"{LIVE}::test_tuples_lists_dicts_defaults_and_conversions",
    ],
    "reduce": [f"{GRAPH}::test_reduce_combines_in_layers", f"{LIVE}::test_reduce_in_layers"],
    "tuple[A, B] is two outputs": [
        f"{GRAPH}::test_two_outputs_may_be_passed_as_a_whole_or_apart",
        "functions/test_handles.py::test_a_tuple_of_outputs_can_be_unpacked_and_nothing_else",
    ],
    "tuple[A, ...] and NamedTuple are one": [f"{GRAPH}::test_tuples_of_any_length_and_named_tuples_are_one_output"],
    "-> None and after": [
        f"{GRAPH}::test_a_function_without_output_orders_by_after",
        f"{LIVE}::test_functions_without_output_are_ordered_by_after",
    ],
    "T fits Optional[T], int fits float, else equal": [
        f"{TYPES}::test_an_output_fits",
        f"{TYPES}::test_an_output_does_not_fit",
        f"{GRAPH}::test_an_int_fits_a_float_and_a_value_its_optional",
    ],
    # width at run time
    "map over a handle": [
        f"{LIVE}::test_word_count_with_a_width_that_is_known_at_run_time_only",
        "executor/test_live.py::test_a_map_over_a_result_has_the_width_of_the_result",
        "functions/test_two_servers.py::test_a_map_expands_once_although_what_expands_it_is_killed",
    ],
    "context().submit extends the job": [f"{SUBMIT}::test_submitted_calls_extend_the_job_under_labels_of_the_task"],
    "waiting for it raises": [
        f"{SUBMIT}::test_waiting_for_a_submitted_call_raises",
        f"{HERE}::test_waiting_inside_a_function_for_what_it_has_submitted_raises_there",
    ],
    "a returned handle delegates": [
        "executor/test_live.py::test_the_output_of_a_delegate_is_the_output_of_the_caller",
        "server/api/test_values.py::test_the_outputs_of_a_job_name_the_function_that_has_delegated_its_output",
        "cli/test_values.py::test_the_result_of_a_job_has_its_values_also_those_that_a_delegate_has_written",
    ],
    # errors
    "TaskFailed has everything, and the original class": [
        f"{LIVE}::test_an_exception_is_raised_with_its_class_traceback_bot_and_log",
        f"{LIVE}::test_an_exception_of_the_programs_own_class",
        "sdk/test_task_failed.py::test_the_nearest_base_that_is_known_is_used",
    ],
    "errors are grouped": [f"{LIVE}::test_errors_are_grouped_by_place_and_other_branches_go_on_if_asked"],
    "new_job fails fast, map and the executor go on": [
        f"{HERE}::test_a_job_fails_fast_and_calls_without_a_graph_go_on",
        f"{LIVE}::test_map_submit_and_as_completed_without_a_graph",
    ],
    "no retries of a whole job": [f"{HERE}::test_a_job_of_the_sdk_is_not_retried_as_a_whole"],
    "timeout is hard": [f"{HERE}::test_a_hard_timeout_ends_the_function_and_nothing_runs_again"],
    "soft_timeout adds an instance": [
        f"{TASK}::test_a_soft_timeout_allows_a_second_instance",
        "functions/test_two_servers.py::test_of_two_instances_that_end_together_one_gives_the_value",
    ],
    "the program of the tutorial, with a failure and a rerun": [
        f"{HERE}::test_a_whole_program_with_a_failure_and_its_rerun",
        f"{LIVE}::test_a_rerun_runs_what_failed",
    ],
    "progress": [f"{HERE}::test_progress_of_a_running_function_is_shown"],
    # executor and clients
    "an Executor with real Futures": [f"{POOL}::test_submit", f"{POOL}::test_first_completed"],
    "submits are coalesced": [f"{HERE}::test_calls_that_come_together_are_few_jobs"],
    "cancel": [
        f"{POOL}::test_cancel_works_until_a_bot_has_taken_the_task",
        f"{BAD}::test_a_future_whose_function_has_begun_cannot_be_cancelled_but_its_job_can",
        "sdk/test_pending_calls.py::test_a_call_that_is_cancelled_before_it_is_sent_is_not_sent",
    ],
    "async client": [f"{LIVE}::test_the_async_client", f"{BLOCK}::test_the_async_client_builds_submits_and_waits"],
    "Ctrl-C": ["functions/test_programs.py::test_ctrl_c_leaves_the_job_running"],
    # types
    "all types": [f"{VALUES}::test_every_type_makes_the_round_trip", f"{HERE}::test_every_type_goes_to_a_bot_and_back"],
    "numpy by the buffer": [f"{VALUES}::test_arrays_of_numpy_make_the_round_trip"],
    "errors name the line, the argument and both types": [
        f"{GRAPH}::test_wrong_wiring_names_the_line_the_argument_and_both_types",
        f"{BAD}::test_a_value_of_a_wrong_type_is_refused_at_the_line_of_the_call_and_nothing_is_submitted",
    ],
    "never pickle": ["architecture/test_structure.py::test_nothing_that_was_sent_is_ever_code"],
    "Path is refused with a hint": [f"{TYPES}::test_what_is_not_a_type_of_values_is_refused_with_a_hint"],
    "the raw API": ["sdk/test_client.py::test_every_call_of_the_client_is_a_route_and_the_other_way_round"],
    # code
    "the default dimension python": [
        f"{TASK}::test_the_version_of_python_is_a_dimension_unless_it_is_removed",
        f"{HERE}::test_the_default_dimension_is_the_version_of_python",
    ],
    "a job pins code and signatures": [
        "functions/test_programs.py::test_a_job_keeps_its_code_until_the_new_one_is_asked_for",
        "functions/test_programs.py::test_another_signature_on_the_bot_fails_before_the_call",
    ],
    "Python 3.8": ["functions/test_old_python.py::test_every_case_has_the_outcome_that_it_has_here"],
}
