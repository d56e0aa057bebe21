"""Shared values beside a model: after each of 1,000 random operations the references are exactly those of the model."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from myrmidon.model.errors import Forbidden, NotFound, UnknownValue
from myrmidon.model.value import GroupOwner, JobOwner
from myrmidon.scheduler import cancel, resource_groups, retention, shared_values
from tests.builders import Graph, World, a_function, inline, returned, shared, shared_output

OPERATIONS = 1_000
BOT = "b1"


@dataclass
class ModelJob:
    graph: Graph
    group: int
    reads: set[int]
    output: int | None = None

    @property
    def names(self) -> set[int]:
        """The values that its task reads or wrote."""
        return self.reads | ({self.output} if self.output is not None else set())


@dataclass
class Model:
    """What there should be. References are ("group", id) and ("job", id)."""

    refs: dict[int, set[tuple[str, int]]] = field(default_factory=dict)
    jobs: dict[int, ModelJob] = field(default_factory=dict)
    groups: dict[int, Any] = field(default_factory=dict)
    deleted: list[int] = field(default_factory=list)

    def may_read(self, group: int, value: int) -> bool:
        return any(
            owner == group if kind == "group" else self.jobs[owner].group == group
            for kind, owner in self.refs.get(value, ())
        )

    def drop(self, value: int, ref: tuple[str, int]) -> bool:
        """Whether the value goes with this reference."""
        if value not in self.refs:
            return False
        self.refs[value].discard(ref)
        if self.refs[value]:
            return False
        del self.refs[value]
        self.deleted.append(value)
        return True

    def drop_all(self, ref: tuple[str, int]) -> None:
        for value in list(self.refs):
            self.drop(value, ref)


class Story:
    """Random operations on a database and on the model."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.w, self.rng, self.model = world, rng, Model()
        self.numbers = 0
        self.done: dict[str, int] = {}
        world.bot(BOT)
        for _ in range(3):
            self.create_group()

    # -- choosing

    def some_value(self) -> int:
        """Mostly one that exists, sometimes one that was deleted or never existed."""
        deleted = self.model.deleted[-5:] or [4711]
        known = list(self.model.refs)
        return self.rng.choice(known if known and self.rng.random() < 0.85 else deleted)

    def some_owner(self) -> tuple[Any, tuple[str, int], int]:
        if self.model.jobs and self.rng.random() < 0.5:
            job_id, job = self.rng.choice(list(self.model.jobs.items()))
            return JobOwner(job.group, job_id), ("job", job_id), job.group
        group = self.rng.choice(list(self.model.groups))
        return GroupOwner(group), ("group", group), group

    # -- operations

    def create_group(self) -> None:
        if len(self.model.groups) < 4:
            self.numbers += 1
            made = self.w.new_group(f"group {self.numbers}")
            self.model.groups[made.id] = made

    def delete_group(self) -> None:
        group = self.rng.choice(list(self.model.groups))
        if len(self.model.groups) < 3 or self.rng.random() < 0.8:
            return
        self.w.do(resource_groups.delete_group, group, force=True)
        self.w.carry()
        for job_id in [job_id for job_id, job in self.model.jobs.items() if job.group == group]:
            self.model.drop_all(("job", job_id))
            del self.model.jobs[job_id]
        self.model.drop_all(("group", group))
        del self.model.groups[group]

    def create(self) -> None:
        owner, ref, _ = self.some_owner()
        self.model.refs[self.w.do(shared_values.create_value, owner, "int64", inline()).id] = {ref}

    def ref(self) -> None:
        owner, ref, group = self.some_owner()
        value = self.some_value()
        if self.model.may_read(group, value):
            self.w.do(shared_values.ref_value, owner, value)
            self.model.refs[value].add(ref)
            return
        with pytest.raises(NotFound):
            self.w.do(shared_values.ref_value, owner, value)

    def give(self) -> None:
        """An administrator references a value for any group."""
        owner, ref, _ = self.some_owner()
        value = self.some_value()
        if value in self.model.refs:
            self.w.do(shared_values.ref_value, owner, value, for_any_group=True)
            self.model.refs[value].add(ref)

    def unref(self) -> None:
        owner, ref, _ = self.some_owner()
        value = self.some_value()
        if ref[0] == "job" and value in self.model.jobs[ref[1]].names:
            with pytest.raises(Forbidden):
                self.w.do(shared_values.unref_value, owner, value)
            return
        assert self.w.do(shared_values.unref_value, owner, value) == self.model.drop(value, ref)

    def localities(self) -> None:
        value = self.some_value()
        if value in self.model.refs:
            self.w.do(shared_values.change_localities, value, add=[f"10.0.0.{self.rng.randrange(3)}"])

    def submit(self) -> None:
        """A job that reads some values, and may make one."""
        group = self.rng.choice(list(self.model.groups))
        reads = {self.some_value() for _ in range(self.rng.randrange(4))}
        outputs = [shared_output()] if self.rng.random() < 0.5 else []
        runs = self.rng.random() < 0.7
        node = {"task": a_function([shared(value) for value in sorted(reads)], outputs), "hold": not runs}
        chosen = self.model.groups[group]
        if not all(self.model.may_read(group, value) for value in reads):
            with pytest.raises(UnknownValue):
                self.w.job({"a": []}, nodes={"a": node}, group=chosen)
            return
        graph = self.w.job({"a": []}, nodes={"a": node}, group=chosen)
        self.model.jobs[graph.id] = ModelJob(graph, group, reads)
        for value in reads:
            self.model.refs[value].add(("job", graph.id))
        if runs:
            self.run(graph.id, outputs)

    def run(self, job_id: int, outputs: list[Any]) -> None:
        """The only task of a job runs. What it makes replaces what its last run has made."""
        self.w.do_one(BOT, outputs=returned(*(b"1" for _ in outputs)))
        job = self.model.jobs[job_id]
        if not outputs:
            return
        last, [(made,)] = job.output, self.w.read(lambda tx: tx.all(OUTPUT, task=job.graph["a"]))
        assert made != last
        job.output = made
        self.model.refs[made] = {("job", job_id)}
        if last is not None and last not in job.reads:
            self.model.drop(last, ("job", job_id))

    def rerun(self) -> None:
        again = [job_id for job_id, job in self.model.jobs.items() if job.output is not None]
        if again:
            job_id = self.rng.choice(again)
            self.w.rerun(self.model.jobs[job_id].graph["a"], force=True)
            self.run(job_id, [shared_output()])

    def delete_job(self) -> None:
        if len(self.model.jobs) < 4:
            return
        job_id = self.rng.choice(list(self.model.jobs))
        self.w.do(cancel.cancel_job, job_id)
        self.w.carry()
        self.w.do(retention.delete_job, job_id, group_id=self.model.jobs[job_id].group)
        self.w.carry()
        self.model.drop_all(("job", job_id))
        del self.model.jobs[job_id]

    # -- the story

    def step(self) -> None:
        weighted: list[tuple[Callable[[], None], int]] = [
            (self.create, 5), (self.ref, 5), (self.give, 2), (self.unref, 8), (self.submit, 5), (self.rerun, 1),
            (self.delete_job, 4), (self.localities, 2), (self.create_group, 1), (self.delete_group, 1),
        ]  # fmt: skip
        [operation] = self.rng.choices([one for one, _ in weighted], [weight for _, weight in weighted])
        self.done[operation.__name__] = self.done.get(operation.__name__, 0) + 1
        operation()

    def compare(self) -> None:
        """Every reference of the database is in the model, and the other way round; nothing else is left."""
        stored: dict[int, set[tuple[str, int]]] = {}
        for kind, table, column in REFERENCES:
            for value, owner in self.w.read(lambda tx, t=table, c=column: tx.all(f"SELECT id, {c} FROM {t}")):
                stored.setdefault(value, set()).add((kind, owner))
        assert stored == self.model.refs
        assert {row[0] for row in self.w.read(lambda tx: tx.all("SELECT id FROM shared_values"))} == stored.keys()
        near = {row[0] for row in self.w.read(lambda tx: tx.all("SELECT id FROM shared_value_localities"))}
        assert near <= stored.keys()

    def end(self) -> None:
        """Drop everything."""
        for group in list(self.model.groups):
            self.w.do(resource_groups.delete_group, group, force=True)
        self.w.carry()
        self.model = Model()


OUTPUT = "SELECT shared_value_id FROM task_outputs WHERE task_id = :task"
REFERENCES = (
    ("group", "resource_group_to_shared_value_ref", "resource_group_id"),
    ("job", "job_to_shared_value_ref", "job_id"),
)


@pytest.mark.parametrize("seed", [20])
def test_references_are_exact_after_a_thousand_random_operations(world: World, seed: int):
    print(f"seed {seed}")
    world.removed = True
    story = Story(world, random.Random(seed))
    for number in range(OPERATIONS):
        story.step()
        try:
            story.compare()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, after operation {number}: {error}") from error
    print(story.done, f"{len(story.model.refs)} values left, {len(story.model.deleted)} deleted")
    story.end()
    story.compare()
