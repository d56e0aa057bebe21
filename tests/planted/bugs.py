"""Bugs that were planted on purpose, and the tests that must turn red because of each.

    python -m tests.planted            plant every one, and say which were caught
    python -m tests.planted NAME ...   only these

A bug is one replacement in a copy of the sources. Where the old text is no longer found exactly once, the bug
has to be planted again: that is a failure too, or this file would slowly stop proving anything.
"""

from __future__ import annotations

import atexit
import compileall
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RED = 1
"""What pytest returns when tests have failed; a test that is missing or cannot be imported returns something else."""


@dataclass(frozen=True)
class Bug:
    """``old`` becomes ``new`` in ``file``; ``why`` is what a user would suffer; ``caught_by`` must fail."""

    name: str
    why: str
    file: str
    old: str
    new: str
    caught_by: tuple[str, ...]
    database: str = "sqlite"


def _race(pair: str) -> tuple[str, ...]:
    name = "test_a_race_has_one_outcome_that_keeps_every_promise"
    return (f"tests/races/test_races.py::{name}[postgresql-{pair}]",)


def _in(file: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/{file}::{name}" for name in names)


BUGS = [
    Bug(
        "token-guard",
        "anybody who knows a task's id could end its run",
        "scheduler/report.py",
        "if run is None or run.bot_id != self.bot_id or not self._has_token(run, item):",
        "if run is None or run.bot_id != self.bot_id:",
        _in("scheduler/test_report.py", "test_nobody_speaks_for_another_run"),
    ),
    Bug(
        "secret-across-reads",
        "a range that begins inside a printed secret would show its rest",
        "server/usecases/logs.py",
        "low, high = max(0, first - forms.reach), min(length, last + forms.reach)",
        "low, high = first, last",
        _in("server/usecases/test_logs.py", "test_ranges_of_any_size_from_any_offset_show_the_masked_log"),
    ),
    Bug(
        "secret-half-written",
        "a follower would get the first half of a secret before the second one is written",
        "model/secret_masking.py",
        "visible_end = end - fragment",
        "visible_end = end",
        _in("server/usecases/test_logs.py", "test_a_log_that_grows_between_reads_is_shown_like_the_whole"),
    ),
    Bug(
        "kept-task-written",
        "a task that became ready beside a bot which cannot run it would never run",
        "scheduler/kept_task.py",
        "        task_to_run.insert_counted(tx, [kept.to_run])\n",
        "",
        _in("scheduler/test_kept_task.py", "test_a_task_that_the_bot_cannot_run_is_queued"),
    ),
    Bug(
        "kept-task-order",
        "a new task would overtake those that wait",
        "scheduler/claim.py",
        "        if not heads:\n            kept =",
        "        if not heads or tx.effects.claim_follows:\n            kept =",
        _in("scheduler/test_kept_task.py", "test_a_task_that_waits_already_goes_first"),
    ),
    Bug(
        "seq-guard",
        "two writers of one task would silently undo each other",
        "store/tables/task_result.py",
        "    if _update(tx, rows, change) != len(tasks):\n",
        "    if _update(tx, rows, change) > len(tasks):\n",
        _in("store/tables/test_guards.py", "test_a_task_that_changed_under_its_writer_is_not_saved"),
    ),
    Bug(
        "ended-run-guard",
        "a late report would change the run that had already been judged",
        "store/tables/task_run.py",
        'session, error""",\n    where="ended_at IS NULL",',
        'session, error""",\n    where="1 = 1",',
        _in("store/tables/test_guards.py", "test_a_run_that_has_ended_never_changes_again"),
    ),
    Bug(
        "late-report",
        "an end reported twice would be counted twice",
        "scheduler/report.py",
        "        if not run.live:\n            return _reply_to_ended_run(run, item)\n",
        "",
        _in("scheduler/test_report.py", "test_an_end_reported_twice_counts_once"),
    ),
    Bug(
        "job-lock",
        "two last tasks on two servers would each see the other running, and the job would never end",
        "scheduler/unit_of_work.py",
        "            self.lock_jobs(job_of.values())\n",
        "            self.jobs.update(jobs_store.read(self.tx, sorted(set(job_of.values()))))\n",
        _race("finish/finish of the last two tasks"),
        "postgresql",
    ),
    Bug(
        "pool-lock",
        "a bot and a queue that come at the same moment would not find each other, and the task would wait for ever",
        "scheduler/new_tasks.py",
        "    pool_order.lock_pools(uow.tx, pools.values())\n",
        "",
        _race("submit/handshake with a new queue and a new pool"),
        "postgresql",
    ),
    Bug(
        "value-lock",
        "the last two references dropped at once would leave the value behind for ever",
        "scheduler/shared_values.py",
        "    if value_id not in shared_value.lock(tx, [value_id]):\n        return False\n",
        "    if value_id not in shared_value.read(tx, [value_id]):\n        return False\n",
        _race("unref/unref of the last two references"),
        "postgresql",
    ),
    Bug(
        "dedupe-value-lock",
        "a task would be answered with a shared value that is being deleted, and its children would read nothing",
        "scheduler/outputs.py",
        "    shared = shared_value.lock(uow.tx, shared_ids) if shared_ids else {}\n",
        "    shared = shared_value.read(uow.tx, shared_ids) if shared_ids else {}\n",
        _race("dedupe by a shared output/deletion of its job"),
        "postgresql",
    ),
    Bug(
        "output-kept",
        "a function that ran again would keep its first output for ever",
        "store/tables/value.py",
        'sets="payload, digest, size", types',
        'sets="payload, digest, size", where="size IS NULL", types',
        _in("scheduler/test_rerun.py", "test_a_function_that_succeeds_again_has_its_new_output"),
    ),
    Bug(
        "winner-bot",
        "a task would name the bot that lost, and start after it had ended",
        "scheduler/run_end.py",
        "    _show_run(uow, task, run)\n    if verdict",
        "    if verdict",
        _in(
            "scheduler/test_instances.py",
            "test_a_task_shows_the_bot_and_the_start_of_the_winner_also_if_that_began_first",
        ),
    ),
    Bug(
        "two-grants",
        "a slow task would be given out twice by one right",
        "scheduler/due.py",
        "task.state != TaskState.RUNNING or granted:",
        "task.state != TaskState.RUNNING:",
        _in("scheduler/test_instances.py", "test_a_straggler_is_granted_one_instance_at_a_time"),
    ),
    Bug(
        "same-bot-twice",
        "a slow bot would be given its own task as the duplicate",
        "store/tables/task_to_run.py",
        "avoid_bot IS NOT NULL AND instance = 0",
        "avoid_bot IS NOT NULL",
        _in(
            "scheduler/test_instances.py",
            "test_a_further_instance_avoids_the_bot_of_the_first_although_no_other_bot_is_left",
        ),
    ),
    Bug(
        "newest-donor",
        "an old result would answer although there is a newer one",
        "store/tables/dedupe.py",
        "     ORDER BY d.task_id\n",
        "     ORDER BY d.task_id DESC\n",
        _in("scheduler/test_dedupe.py", "test_the_newest_donor_answers"),
    ),
    Bug(
        "outdated-run",
        "a task would start on the old result of its grandparent, although that one is run again first",
        "scheduler/run_end.py",
        "    if run.generation != task.generation:\n        verdict = judge_outdated(task)\n",
        "",
        _in("scheduler/test_cascade.py", "test_a_running_child_waits_again_when_its_run_has_ended"),
    ),
    Bug(
        "ageing-in-one-queue",
        "a task that has waited for hours would lose to every new one in another queue",
        "scheduler/policy.py",
        "standing(task_rank, head.ageing, now)",
        "standing(task_rank, 0, now)",
        _in("scheduler/test_pools.py", "test_no_task_starves_however_many_better_ones_arrive"),
    ),
    Bug(
        "claim-waits",
        "a claim would wait for a cancel that waits for the claim",
        "store/engine/sql.py",
        '"skip_locked": ("", "FOR UPDATE SKIP LOCKED",',
        '"skip_locked": ("", "FOR UPDATE",',
        _race("claim/cancel"),
        "postgresql",
    ),
    Bug(
        "old-session",
        "an old process of a bot would push the new one aside",
        "scheduler/bots.py",
        "    if bot is None or request.session < bot.session:\n",
        "    if bot is None:\n",
        _race("handshake/handshake of a new bot"),
        "postgresql",
    ),
    Bug(
        "two-sequencers",
        "two events would get one number, and a sink would miss one of them",
        "store/tables/shared_numbers.py",
        'LOCK = "SELECT value FROM shared_numbers WHERE name = :name {for_update}"',
        'LOCK = "SELECT value FROM shared_numbers WHERE name = :name"',
        _race("sequencer/sequencer"),
        "postgresql",
    ),
    Bug(
        "lost-event",
        "nobody would hear that a task has changed",
        "store/tables/outbox.py",
        "        tx.defer(_store, rows)\n",
        '        tx.defer(_store, [row for row in rows if row[4] != "RUNNING" or row[3] != TASK])\n',
        _in("scheduler/test_outbox.py", "test_every_change_of_a_task_is_told"),
    ),
    Bug(
        "edge-twice",
        "a task would start before all its parents are done",
        "scheduler/propagate.py",
        "counts[child] = counts.get(child, 0) + 1",
        "counts[child] = counts.get(child, 0) + 2",
        _in("scheduler/test_propagate.py", "test_a_child_is_ready_when_all_its_parents_have_succeeded"),
    ),
    Bug(
        "failed-parent-feeds",
        "a task would run on the output of a failure",
        "scheduler/propagate.py",
        "if task.state == SUCCEEDED or children[child].resolves_all:",
        "if task.final:",
        _in("scheduler/test_propagate.py", "test_all_resolved_and_all_succeeded_children_of_one_failed_parent"),
    ),
    Bug(
        "job-ends-early",
        "a job would end while half of its fan-out has not been told to start",
        "scheduler/propagate.py",
        "or job.staged or job.num_active or job.num_chunked_work:",
        "or job.staged or job.num_active:",
        _in("scheduler/test_rerun.py", "test_a_large_job_is_reset_in_chunks", "test_what_failed_of_a_job_runs_again"),
    ),
    Bug(
        "cancelled-but-queued",
        "a cancelled task would be given to a bot",
        "scheduler/unit_of_work.py",
        "        if old == READY or (state in FINAL and self._may_be_queued(task)):\n",
        "        if was != TaskState.READY and (state in FINAL and self._may_be_queued(task)):\n",
        _in("scheduler/test_cancel.py", "test_a_task_that_waits_for_a_bot_is_cancelled_at_once"),
    ),
    Bug(
        "free-retry",
        "a task that kills its machines would do so for ever",
        "scheduler/run_end.py",
        "task.num_retries += int(verdict.retried)",
        "task.num_retries += 0",
        _in("scheduler/test_report.py", "test_the_second_fault_is_final"),
    ),
    Bug(
        "avoided-bot",
        "a retry would go straight back to the machine that lost it",
        "scheduler/ready.py",
        "return lost_by if task_queues.served(uow.tx, [queue], excluding=lost_by) else None",
        "return None",
        _in("scheduler/test_due.py", "test_a_lost_bot_is_retried_once_on_another_bot"),
    ),
    Bug(
        "old-expiry",
        "a retry would expire with the time that its lost run has used up",
        "scheduler/ready.py",
        "expires_at = uow.now + task_slice.expiration\n",
        "expires_at = request.created_at + task_slice.expiration\n",
        _in("scheduler/test_due.py", "test_a_retry_gets_a_fresh_expiry_within_the_deadline"),
    ),
    Bug(
        "any-kind",
        "a bot that runs a command would be given a second one, which waits there",
        "scheduler/claim.py",
        "        if accepts is not Accepts.ANY and not accepts.includes(functions=head.of_functions):\n            continue\n",
        "",
        _in("scheduler/test_claim.py", "test_a_bot_that_is_busy_with_one_kind_may_claim_the_other_one_only"),
    ),
    Bug(
        "old-nonce",
        "a poll that the network has delayed would start runs that no bot waits for",
        "scheduler/claim.py",
        "    if poll.nonce < bot.nonce:\n",
        "    if poll.nonce < 0:\n",
        _in("scheduler/test_claim.py", "test_an_older_nonce_gets_nothing"),
    ),
    Bug(
        "foreign-nonce",
        "a new process that repeats an old number would be handed runs, and their secrets, under a wrong token",
        "scheduler/claim.py",
        "run.session == poll.session and run.nonce == poll.nonce",
        "run.nonce == poll.nonce",
        _in("store/tables/test_guards.py", "test_a_nonce_of_another_session_is_handed_nothing"),
    ),
    Bug(
        "held-ignored",
        "a task that somebody holds would start with its parents' success",
        "scheduler/propagate.py",
        "        and not task.held\n",
        "",
        _in("scheduler/test_hold.py", "test_a_held_task_does_not_start_when_its_parents_are_done"),
    ),
    Bug(
        "hash-only",
        "somebody who forges a hash would put tasks into other people's queues",
        "scheduler/new_tasks.py",
        "        if key in wanted:\n            found[key] = queue\n",
        "        found |= {key: queue for key, hashed in wanted.items() if hashed == queue.hash}\n",
        _in("scheduler/test_claim.py", "test_a_forged_hash_collision_mixes_no_queues"),
    ),
    Bug(
        "job-state-ignored",
        "a job that is cancelled while it is being reset would come back to life",
        "scheduler/maintenance.py",
        "    if kind.states is not None and (job is None or not (job.staged or job.state in kind.states)):\n",
        "    if kind.states is not None and job is None:\n",
        _in("scheduler/test_maintenance.py", "test_work_that_may_not_run_in_the_state_of_its_job_is_dropped"),
    ),
    Bug(
        "ready-in-a-cancelled-job",
        "a task that is released while its job is being cancelled would start",
        "scheduler/ready.py",
        "if (job := uow.job_of(task)) is not None and job.state == JobState.CANCELLED:",
        "if (job := uow.job_of(task)) is not None and job.state == JobState.FAILED:",
        _in(
            "scheduler/test_maintenance.py",
            "test_a_task_that_is_released_while_its_job_is_being_cancelled_does_not_start",
        ),
    ),
    Bug(
        "reset-behind-a-cancellation",
        "a job that fails fast while it is being reset would start the tasks again that were just cancelled",
        "scheduler/propagate.py",
        "        uow.finish_chunked_work(*chunked_work.lock_of_kinds(",
        "        (lambda *works: None)(*chunked_work.lock_of_kinds(",
        _in("scheduler/test_maintenance.py", "test_a_failure_that_cancels_the_rest_of_a_job_ends_its_reset"),
    ),
    Bug(
        "stale-now",
        "what a long round of maintenance starts late would have expired already",
        "scheduler/maintenance.py",
        "        self._clock = clock\n",
        "        self._clock = lambda at=clock(): at\n",
        _in("scheduler/test_maintenance.py", "test_what_is_started_late_in_a_round_has_its_whole_time"),
    ),
    Bug(
        "unrecorded-outage",
        "the first round after an outage would give up every running task",
        "scheduler/due.py",
        "    if not due or is_away(tx, now, uow.rules):\n",
        "    if not due:\n",
        _in(
            "scheduler/test_maintenance.py",
            "test_while_the_end_of_an_outage_is_not_recorded_no_lease_ends_and_nothing_old_is_deleted",
        ),
    ),
    Bug(
        "half-deleted-graph",
        "a graph whose deletion has begun would become visible, without some of its tasks",
        "scheduler/submit_job.py",
        "    return job is None or job.num_chunked_work > 0\n",
        "    return job is None\n",
        _in("scheduler/test_maintenance.py", "test_a_graph_whose_deletion_has_begun_cannot_be_completed_any_more"),
    ),
    Bug(
        "one-job-at-a-time",
        "a small job would wait until the cancellation of a huge one is complete",
        "scheduler/maintenance.py",
        "            if (turn := self._turns.popleft()) not in left:\n",
        "            if (turn := self._turns[0]) not in left or self._turns.popleft() is None:\n",
        _in("scheduler/test_maintenance.py", "test_a_small_job_does_not_wait_for_large_ones"),
    ),
    Bug(
        "outage-forgotten",
        "after an hour of our own absence every running task would be declared lost",
        "scheduler/policy.py",
        "    return now - last_alive > rules.outage or",
        "    return now - last_alive > rules.outage * 1000000 or",
        _in("scheduler/test_due.py", "test_after_an_outage_every_lease_begins_anew"),
    ),
    Bug(
        "outputs-kept",
        "a job that runs again from the start would hand out the results of the last time",
        "scheduler/rerun.py",
        "if uow.requests[task.id].num_outputs]:\n        erase_outputs(",
        "if uow.requests[task.id].num_outputs and reset.automatic]:\n        erase_outputs(",
        _in("store/tables/test_guards.py", "test_a_full_rerun_takes_back_what_was_produced"),
    ),
    Bug(
        "dedupe-across-groups",
        "one group would be answered with the results of another",
        "model/task_request.py",
        "_canonical_json((properties_hash, resource_group_id, pool, service_account, *scoped))",
        "_canonical_json((properties_hash, 0, pool, service_account, *scoped))",
        _in("scheduler/test_dedupe.py", "test_another_group_is_not_answered"),
    ),
    Bug(
        "value-of-a-job",
        "a value would vanish while a job still needs it",
        "store/tables/shared_value.py",
        "       AND NOT EXISTS (SELECT 1 FROM job_to_shared_value_ref j WHERE j.id = v.id)\n",
        "",
        _in("scheduler/test_resource_groups.py", "test_a_value_lives_while_something_references_it"),
    ),
    Bug(
        "file-of-another-group",
        "whoever knows a digest could read the files of other groups",
        "store/tables/stored_file.py",
        "FROM stored_files WHERE digest {in_text:digests} AND resource_group_id = :owner",
        "FROM stored_files WHERE digest {in_text:digests} AND :owner = :owner",
        _in("scheduler/test_files.py", "test_a_digest_alone_gives_no_right_to_a_file_of_another_group"),
    ),
    Bug(
        "file-in-use",
        "a file would be deleted between an upload and the submit that refers to it",
        "store/tables/stored_file.py",
        '_UNUSED = """used_at < :before\n',
        '_UNUSED = """:before = :before\n',
        _in("server/background/test_file_collection.py", "test_a_reference_that_is_added_while_rows_are_deleted_wins"),
    ),
    Bug(
        "file-stored-again",
        "a file that is stored again while it is deleted would be lost",
        "files/folder.py",
        "            if taken.stat().st_mtime < unless_since:\n",
        "            if taken.stat().st_mtime > 0:\n",
        _in("server/background/test_file_collection.py", "test_a_file_that_is_stored_again_meanwhile_is_kept"),
    ),
    Bug(
        "code-in-use",
        "the code of a job that waits for a day would be deleted",
        "store/tables/stored_file.py",
        "       AND NOT EXISTS (SELECT 1 FROM job_codes c WHERE c.code = stored_files.digest)\n",
        "",
        _in("server/background/test_file_collection.py", "test_the_code_of_a_job_is_kept_until_the_job_is_deleted"),
    ),
    Bug(
        "unverified-upload",
        "other bytes than those of the digest would be stored under it",
        "files/folder.py",
        "        if given != self._digest:\n",
        "        if not given:\n",
        _in("files/test_folder.py", "test_other_bytes_than_those_of_the_digest_are_refused_and_nothing_is_left"),
    ),
    Bug(
        "file-after-the-run",
        "a bot could read the inputs of runs that have ended",
        "scheduler/new_values.py",
        " and found.ended_at is None:\n",
        ":\n",
        _in("server/api/test_files.py", "test_files_of_a_run_end_with_it"),
    ),
    Bug(
        "output-of-another-group",
        "a bot could show a file of another group as the output of its run",
        "scheduler/outputs.py",
        "stored.get(payload.digest) == payload.size",
        "payload.size >= 0",
        _in("server/api/test_files.py", "test_an_output_is_a_file_that_the_group_of_the_run_has"),
    ),
    Bug(
        "submit-in-doubt",
        "a submit whose commit was in doubt would be refused or done twice",
        "scheduler/submit.py",
        "    if tx.attempt > 1:\n        answers.update(_already_stored(uow, drafts))\n",
        "",
        _in("scheduler/test_submit.py", "test_a_submit_whose_commit_is_in_doubt_is_not_done_twice"),
    ),
    Bug(
        "identity-module-as-a-value",
        "an edit of a function that is found by its name in a module would not run its callers again",
        "sdk/function_identity.py",
        "        else:\n            self._whole(origin)\n",
        "        else:\n            self._load(origin)\n",
        _in(
            "sdk/test_function_identity.py",
            "test_an_edit_that_changes_the_result_changes_the_identity[a module as a value]",
        ),
    ),
    Bug(
        "identity-order-of-imports",
        "imports in another order would leave an earlier result",
        "sdk/function_identity.py",
        "for module, statement in self._executed:",
        "for module, statement in sorted(self._executed, key=lambda one: one[0]):",
        _in(
            "sdk/test_function_identity.py",
            "test_an_edit_that_changes_the_result_changes_the_identity[the order of imports]",
        ),
    ),
    Bug(
        "identity-calls-in-defaults",
        "a module that does something in the default of a function would be taken for one that only defines it",
        "sdk/module_statements.py",
        'inner = [*getattr(node, "decorator_list", ()), node.args, getattr(node, "returns", None)]',
        'inner = [*getattr(node, "decorator_list", ())]',
        _in(
            "sdk/test_function_identity.py",
            "test_an_edit_that_changes_the_result_changes_the_identity[a default of a function]",
        ),
    ),
    Bug(
        "identity-too-wide",
        "an edit of a docstring would run everything again that calls the function",
        "sdk/function_identity.py",
        "and node.name not in self._values",
        "and not node.name",
        _in("sdk/test_function_identity.py", "test_an_edit_of_anything_else_keeps_the_identity[its docstring]"),
    ),
]


def planted(bug: Bug, folder: Path) -> str:
    """Copy the sources with the bug into a folder; why that cannot be done, or nothing."""
    shutil.copytree(_compiled(), folder / "src")
    file = folder / "src" / "myrmidon" / bug.file
    text = file.read_text()
    if text.count(bug.old) != 1:
        return f"its text is found {text.count(bug.old)} times in {bug.file}: plant it again"
    file.write_text(text.replace(bug.old, bug.new))
    for stale in file.parent.glob(f"__pycache__/{file.stem}.*"):
        stale.unlink()
    return ""


@cache
def _compiled() -> Path:
    """The sources with their compiled form, made once: a copy keeps the times by which that is known to be fresh."""
    folder = Path(tempfile.mkdtemp(prefix="myrmidon-planted-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(folder / "src", quiet=1)
    return folder / "src"


def run_tests(sources: Path, tests: list[str], databases: str, *options: str) -> subprocess.CompletedProcess[str]:
    """The tests of this tree on other sources; those that only `--all` runs are left out."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MYRMIDON_", "PYTEST_", "COV_"))}
    env["PYTHONPATH"] = str(sources)
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    given = ["-x", "-q", "-p", "no:cacheprovider", "--tb=line", "--databases", databases]
    command = [sys.executable, "-m", "pytest", *given, *options, *tests]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)


def why_missed(bug: Bug) -> str:
    """Plant a bug and look for it: nothing when the tests turn red, else what is wrong."""
    with tempfile.TemporaryDirectory(prefix="myrmidon-planted-") as temporary:
        folder = Path(temporary)
        if trouble := planted(bug, folder):
            return trouble
        done = run_tests(folder / "src", list(bug.caught_by), bug.database)
    if done.returncode == RED:
        return ""
    told = (done.stdout + done.stderr).strip().splitlines()[-15:]
    return "\n".join([f"the tests did not turn red (pytest returned {done.returncode}):", *told])
