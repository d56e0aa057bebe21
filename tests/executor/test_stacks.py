from __future__ import annotations

from textwrap import dedent

from myrmidon.executor.stacks import users_stacks

EXECUTOR = """\
  File "/bot/functions/shared/bot.zip/myrmidon/functions/signature.py", line 71 in call
  File "/bot/functions/shared/bot.zip/myrmidon/executor/runner.py", line 62 in run
  File "/bot/functions/shared/bot.zip/__main__.py", line 129 in <module>
  File "<frozen runpy>", line 88 in _run_code
"""
USER = """\
  File "/code/sample.py", line 5 in inner
  File "/code/sample.py", line 9 in outer
"""


def test_a_stack_ends_with_the_users_function():
    heading = "Current thread 0x00007fb1d1ef7040 (most recent call first):\n"
    assert users_stacks(heading + USER + EXECUTOR) == heading + USER


def test_frames_of_the_package_above_the_users_function_stay():
    heading = "Current thread 0x00007fb1d1ef7040 [python] (most recent call first):\n"
    within = '  File "/bot/functions/shared/bot.zip/myrmidon/executor/run_context.py", line 5 in submit\n'
    assert users_stacks(heading + within + USER + EXECUTOR) == heading + within + USER


def test_a_stack_without_a_frame_of_the_user_is_left_out():
    assert users_stacks("Current thread 0x1 (most recent call first):\n" + EXECUTOR) == ""


def test_each_of_several_threads_and_the_rest_of_the_report_are_shown():
    report = dedent("""\
        Fatal Python error: Segmentation fault

        Thread 0x2 (most recent call first):
          File "/usr/lib/python3.11/threading.py", line 320 in wait
          File "/usr/lib/python3.11/threading.py", line 995 in _bootstrap

        Current thread 0x1 (most recent call first):
        %s
        Extension modules: numpy.core._multiarray_umath (total: 1)
        """)
    assert users_stacks(report % (USER + EXECUTOR)) == report % USER


def test_a_stack_that_is_too_deep_to_be_whole_is_shown_as_it_is():
    stack = "Current thread 0x1 (most recent call first):\n" + USER + "  ...\n"
    assert users_stacks(stack) == stack
