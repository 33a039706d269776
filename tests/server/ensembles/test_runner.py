"""Tests for requests to ensembles: they hold all steps, and run each through its model's batcher."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.ensembles import StepModels, make_ensemble
from tests.support.fake_device import DOUBLE, FLOAT, FakeServable
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.deadline import Deadline, SystemClock
from tpuserve_server.core.terms.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    TooLate,
    Unavailable,
)
from tpuserve_server.core.terms.types import ModelSpec, ServableId, Signature, State, Tensors, TensorSpec

X = np.ones((1, 2), np.float32)
# DOUBLE with a second input, which it ignores.
WEIGHTED = Signature("serving_default", {**DOUBLE.inputs, "w": DOUBLE.inputs["x"]}, DOUBLE.outputs)
NEVER = Deadline.never()


@pytest.fixture
def models() -> Iterator[StepModels]:
    models = StepModels()
    for name in ("a", "b"):
        models.add(name)
    models.add("join", signature=WEIGHTED)
    models.add_ensemble("chain", make_ensemble("a x=image -> y=twice", "b x=twice -> y=fourfold"))
    models.add_ensemble(
        "diamond",
        make_ensemble("a x=image -> y=l", "b x=image -> y=r x=copy", "join x=l w=r -> y=sum", outputs="sum copy"),
    )
    yield models
    models.stop()


async def predict(
    models: StepModels,
    name: str = "chain",
    x: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = X,
    deadline: Deadline = NEVER,
    output_filter: tuple[str, ...] = (),
) -> Tensors:
    with models.service.acquire(ModelSpec(name)) as model:
        result = await model.predict({"image": x}, deadline, output_filter)
        assert result.servable == ServableId(name, 1)
        return result.outputs


def servable(models: StepModels, name: str, version: int = 1) -> FakeServable:
    return models.servables[ServableId(name, version)]


async def hold(models: StepModels, step: str, name: str = "chain") -> "asyncio.Task[Tensors]":
    """Start a request that waits in a step."""
    servable(models, step).gate.clear()
    task = asyncio.create_task(predict(models, name))
    await asyncio.to_thread(servable(models, step).entered.acquire)
    return task


async def test_outputs_of_a_step_are_inputs_of_the_next(models: StepModels) -> None:
    outputs = await predict(models)
    assert list(outputs) == ["fourfold"]
    np.testing.assert_array_equal(outputs["fourfold"], 4 * X)


async def test_concurrent_requests_share_the_batches_of_each_step(
    models: StepModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = models.batchers[ServableId("b", 1)]
    queued, submit = asyncio.Semaphore(0), batcher.submit

    def counted(task: Task) -> None:
        submit(task)
        queued.release()

    monkeypatch.setattr(batcher, "submit", counted)
    in_b = await hold(models, "b")
    # The first request has passed step a.
    assert servable(models, "a").entered.acquire(blocking=False)
    in_a = await hold(models, "a")
    others = [asyncio.create_task(predict(models)) for _ in range(2)]
    await asyncio.sleep(0)
    servable(models, "a").gate.set()
    for _ in range(4):
        await queued.acquire()
    servable(models, "b").gate.set()
    await asyncio.gather(in_b, in_a, *others)
    assert [len(batch["x"]) for batch in servable(models, "a").batches] == [1, 1, 2]
    # Three rows, padded to four.
    assert [len(batch["x"]) for batch in servable(models, "b").batches] == [1, 4]


async def test_a_request_with_several_rows_runs_as_one(models: StepModels) -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal((await predict(models, x=x))["fourfold"], 4 * x)


async def test_steps_whose_inputs_are_ready_run_at_the_same_time(models: StepModels) -> None:
    held = await hold(models, "a", "diamond")
    # b runs although a has not ended.
    await asyncio.to_thread(servable(models, "b").entered.acquire)
    assert servable(models, "join").batches == []
    servable(models, "a").gate.set()
    outputs = await held
    np.testing.assert_array_equal(outputs["sum"], 4 * X)
    np.testing.assert_array_equal(outputs["copy"], X)


async def test_steps_that_no_requested_output_needs_do_not_run(models: StepModels) -> None:
    assert list(await predict(models, "diamond", output_filter=("copy",))) == ["copy"]
    assert len(servable(models, "b").batches) == 1
    assert servable(models, "a").batches == servable(models, "join").batches == []


async def test_arrays_go_from_step_to_step_without_a_copy(models: StepModels) -> None:
    seen: list[Tensors] = []
    passed = np.full((1, 2), 7, np.float32)
    servable(models, "a").outputs = {"y": passed, "x": passed}
    servable(models, "b").on_inputs = seen.append
    await predict(models)
    # A full batch of one request is passed on as it is.
    assert np.shares_memory(seen[0]["x"], passed)


async def test_an_ensemble_can_be_a_step(models: StepModels) -> None:
    models.add_ensemble("outer", make_ensemble("chain image=image -> fourfold=t", "a x=t -> y=eightfold"))
    np.testing.assert_array_equal((await predict(models, "outer"))["eightfold"], 8 * X)
    with models.service.acquire(ModelSpec("outer")) as model, pytest.raises(InvalidArgument) as caught:
        await model.predict({"image": -X}, NEVER)
    assert caught.value.message == (
        "Ensemble outer, step 1 (chain): Ensemble chain, step 1 (a): x must not be negative"
    )


@pytest.mark.parametrize(
    ("inputs", "output_filter", "message"),
    [
        ({"x": X}, (), "Sent extra: {x}. Missing but required: {image}"),
        ({"image": X.astype(np.float64)}, (), "Input 'image' of signature 'serving_default' of model chain version 1"),
        ({"image": X}, ("twice",), "output tensor alias not found in signature: twice"),
    ],
)
async def test_a_wrong_request_is_refused_in_terms_of_the_ensemble(
    models: StepModels, inputs: Tensors, output_filter: tuple[str, ...], message: str
) -> None:
    with models.service.acquire(ModelSpec("chain")) as model, pytest.raises(InvalidArgument) as caught:
        await model.predict(inputs, NEVER, output_filter)
    assert message in caught.value.message
    assert servable(models, "a").batches == []


@pytest.mark.parametrize("name", ["chain", "diamond"])
async def test_the_error_of_a_step_arrives_with_its_code_and_name(models: StepModels, name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await predict(models, name, -X)
    step = {"chain": "step 1 (a)", "diamond": "step "}[name]
    assert caught.value.message.startswith(f"Ensemble {name}, {step}")
    assert caught.value.message.endswith("x must not be negative")


async def test_the_retry_hint_of_a_step_reaches_the_client(models: StepModels, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, late = Batcher.submit, models.batchers[ServableId("b", 1)]

    def refuse(batcher: Batcher, task: Task) -> None:
        if batcher is late:
            raise TooLate("too late", 1.5)
        submit(batcher, task)

    monkeypatch.setattr(Batcher, "submit", refuse)
    with pytest.raises(TooLate) as caught:
        await predict(models)
    assert caught.value.retry_after_s == 1.5
    assert caught.value.message == "Ensemble chain, step 2 (b): too late"


async def test_the_deadline_applies_to_every_step(models: StepModels) -> None:
    servable(models, "b").gate.clear()
    # On a busy machine it may pass in the first step.
    with pytest.raises(DeadlineExceeded, match=r"Ensemble chain, step [12]"):
        await predict(models, deadline=Deadline.after(0.05, SystemClock()))


@pytest.mark.parametrize("name", ["chain", "diamond"])
async def test_a_cancelled_request_leaves_the_queue_of_its_step(models: StepModels, name: str) -> None:
    in_step = await hold(models, "a")
    waiting = asyncio.create_task(predict(models, name))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    servable(models, "a").gate.set()
    await in_step
    assert len(servable(models, "a").batches) == 1


async def test_a_request_keeps_the_versions_of_all_steps_from_its_start(models: StepModels) -> None:
    held = await hold(models, "a")
    models.add("b", 2)
    models.remove("b", 1)
    servable(models, "a").gate.set()
    await held
    assert len(servable(models, "b", 1).batches) == 1
    assert servable(models, "b", 2).batches == []
    # The old version is released, and later requests take the new one.
    models.wait_released("b")
    await predict(models)
    assert len(servable(models, "b", 2).batches) == 1


async def test_a_step_that_was_unloaded_makes_the_ensemble_unavailable(models: StepModels) -> None:
    models.remove("b")
    models.registry.ended(ServableId("b", 1))
    with pytest.raises(Unavailable) as caught:
        await predict(models)
    assert caught.value.message == ("Ensemble chain: step 2 (b) cannot run: Servable not found for request: Latest(b)")
    # The steps that were held before are released.
    models.remove("a")
    models.wait_released("a")


async def test_a_step_that_has_changed_is_checked_again(models: StepModels) -> None:
    assert models.service.metadata(ModelSpec("chain")).signatures["serving_default"].outputs["fourfold"].shape == (
        None,
        2,
    )
    wide = TensorSpec("y", FLOAT, (None, None))
    models.add("b", 2, Signature("serving_default", DOUBLE.inputs, {"y": wide, "x": DOUBLE.outputs["x"]}))
    metadata = models.service.metadata(ModelSpec("chain"))
    assert metadata.signatures["serving_default"].outputs["fourfold"].shape == (None, None)
    models.add("b", 3, Signature("serving_default", {"x": TensorSpec("x", np.dtype(np.int32), None)}, DOUBLE.outputs))
    with pytest.raises(FailedPrecondition) as caught:
        await predict(models)
    assert caught.value.message == (
        "Ensemble chain: step 1 (a version 1) produces tensor twice as float32 [-1, 2], but step 2 (b version 3) takes "
        "it as int32 any shape"
    )


async def test_a_signature_that_a_step_no_longer_has_is_named(models: StepModels) -> None:
    models.add("b", 2, Signature("other", DOUBLE.inputs, DOUBLE.outputs))
    with pytest.raises(FailedPrecondition, match=r'step 2 \(b\) cannot run: Serving signature key "serving_default"'):
        await predict(models)


async def test_other_signatures_and_versions_of_the_ensemble_do_not_exist(models: StepModels) -> None:
    with pytest.raises(FailedPrecondition, match='Serving signature key "other" not found'):
        models.service.acquire(ModelSpec("chain", signature_name="other"))
    with pytest.raises(NotFound, match=r"Specific\(chain, 2\)"):
        models.service.acquire(ModelSpec("chain", 2))
    # Neither holds a step.
    models.remove("a")
    models.wait_released("a")


async def test_a_request_that_names_no_signature_runs_the_only_one(models: StepModels) -> None:
    with models.service.acquire_version(ModelSpec("chain")) as version:
        [signature] = version.signatures.values()
        assert (version.servable_id, version.has_objective(signature.name)) == (ServableId("chain", 1), False)
        result = await version.predict(signature, {"image": X}, NEVER)
    np.testing.assert_array_equal(result.outputs["fourfold"], 4 * X)
    models.remove("a")
    models.wait_released("a")


def test_class_labels_are_those_of_the_last_step_that_has_any(models: StepModels) -> None:
    assert models.service.metadata(ModelSpec("chain")).labels == ()
    models.add("a", 2, labels=("cat", "dog"))
    assert models.service.metadata(ModelSpec("chain")).labels == ("cat", "dog")
    models.add("b", 2, labels=("shirt", "shoe"))
    metadata = models.service.metadata(ModelSpec("chain"))
    assert (metadata.labels, metadata.precision) == (("shirt", "shoe"), None)


def test_an_ensemble_has_the_states_of_any_model(models: StepModels) -> None:
    [status] = models.service.status(ModelSpec("chain"))
    assert (status.servable, status.state) == (ServableId("chain", 1), State.AVAILABLE)


@pytest.mark.parametrize("name", ["chain", "diamond"])
async def test_an_ended_request_is_gone_with_its_answer(models: StepModels, name: str) -> None:
    gc.disable()
    try:
        arrays = [sign * np.ones((1, 2), np.float32) for sign in (1, -1)]
        alive = [weakref.ref(array) for array in arrays]
        for array in arrays:
            with contextlib.suppress(InvalidArgument):
                await predict(models, name, array)
        del array, arrays
        await predict(models, name)
        assert [reference() for reference in alive] == [None] * 2
    finally:
        gc.enable()
