"""Large graph documents: decoded in parts, one at a time, without garbage collection meanwhile."""

from __future__ import annotations

import asyncio
import gc
import json
import threading

import pytest
from msgspec import Raw

from myrmidon.model.errors import InvalidRequest
from myrmidon.server.large_documents import LARGE_BYTES, LargeDocuments, free_parts
from myrmidon.server.usecases.jobs import decode_document
from tests.deadline import HANG_S

NODE = {"requires": ["a", "ü"], "task": {"payload": {"command": ["x"], "deep": [{"y": [1, 2.5, None, True]}]}}}


@pytest.mark.parametrize(
    "document",
    [
        {"name": "both", "tasks": {"a": NODE, "": NODE}, "tags": ["x:y"], "parameters": {"p": 1}},
        {"name": "a list", "tasks": [{"label": "a", **NODE}, 7, None, []]},
        {"tasks": {}}, {"tasks": []}, {"tasks": None}, {"tasks": 7}, {"tasks": "{"}, {}, [], [1], None, 7, "{",
    ],
)  # fmt: skip
@pytest.mark.parametrize("blanks", ["", " \n\t", " " * 100])
def test_a_document_decoded_in_parts_is_the_same_document(document, blanks):
    text = blanks + json.dumps(document, indent=1)
    assert decode_document(Raw(text.encode())) == document


@pytest.mark.parametrize("text", [b'{"tasks": {"a": }}', b'{"tasks": ["\xff"]}', b'{"x": "\xff"}', b"{", b"nul"])
def test_what_is_not_json_is_refused(text):
    with pytest.raises(InvalidRequest):
        decode_document(text)


@pytest.mark.parametrize("tasks", [[7] * 100_001, dict.fromkeys(range(100_001), 7)], ids=["list", "by label"])
def test_more_tasks_than_a_job_may_have_are_refused_before_anything_is_done_with_them(tasks):
    with pytest.raises(InvalidRequest, match=r"allowed: 1\.\.100000 tasks"):
        decode_document(json.dumps({"tasks": tasks}).encode())


def test_one_large_document_at_a_time_is_let_in_and_small_ones_always():
    async def story():
        documents, order = LargeDocuments(), []
        leave = asyncio.Event()

        async def handle(name, size, until=None):
            async with documents.enter(size):
                order.append((name, gc.isenabled()))
                if until:
                    await until.wait()

        first = asyncio.ensure_future(handle("first", LARGE_BYTES, leave))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(handle("second", LARGE_BYTES))
        await handle("small", LARGE_BYTES - 1)
        leave.set()
        await asyncio.gather(first, second)
        return order

    was = gc.isenabled()
    assert asyncio.run(story()) == [("first", False), ("small", False), ("second", False)]
    assert gc.isenabled() == was


def test_an_error_lets_the_next_document_in():
    async def story():
        documents = LargeDocuments()
        with pytest.raises(ValueError, match="wrong"):
            async with documents.enter(LARGE_BYTES):
                raise ValueError("wrong")
        assert gc.isenabled()
        async with documents.enter(LARGE_BYTES):
            return True

    gc.enable()
    assert asyncio.run(story())


def test_other_threads_run_while_something_large_is_freed():
    class Part:
        """Looks, while it is freed, at whether another thread had its turn since the first part was."""

        def __del__(self):
            if not begun.is_set():
                begun.set()
                seen.wait(HANG_S)

    begun, seen = threading.Event(), threading.Event()
    parts = {number: Part() for number in range(3)}
    freeing = threading.Thread(target=free_parts, args=(parts,))
    freeing.start()
    assert begun.wait(HANG_S)
    assert len(parts) == 2, "the other parts are still there"
    seen.set()
    freeing.join()
    assert parts == {}
    listed = [[1], [2]]
    free_parts(listed)
    assert listed == []
