"""What every method and clustering promises: registering one is testing it."""

from copy import deepcopy
from dataclasses import fields, is_dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedmcc.data.synthetic import Synthetic
from fedmcc.messages import Update
from fedmcc.methods import CLUSTERINGS, METHODS
from fedmcc.methods.base import Stage
from fedmcc.numerics.state_dicts import detached, select
from fedmcc.training.batches import BatchSource
from fedmcc.training.loop import Training, train, trainable
from fedmcc.views import preset

REGISTRIES = {"method": METHODS, "clustering": CLUSTERINGS}
over_entries = pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=name) for kinds in REGISTRIES.values() for name, kind in kinds.items()],
)


@over_entries
def test_an_entry_is_a_frozen_dataclass_with_defaults_and_a_sentence(kind):
    assert is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    assert kind() == kind()  # every field has a default
    assert kind.__doc__.strip().splitlines()[0].endswith(".")
    assert not kind.__doc__.startswith(f"{kind.__name__}(")  # the docstring that dataclass makes up


def _stage_names(cases, name):
    return [case.stage("group").name for case in cases if case.name == name]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_stages_whose_names_fit_in_a_file_name(cases, method):
    names = _stage_names([case for case in cases if case.registry == "method"], method)
    assert names or method == "raw"
    assert all(name.replace("_", "").replace("-", "").isalnum() for name in names)


@pytest.mark.parametrize("method", METHODS)
def test_no_two_stages_of_a_run_share_a_name(cases, method):
    of_method = [case for case in cases if (case.registry, case.name) == ("method", method)]
    runs = [_stage_names(of_method, method)]
    # A method with a cluster head may not be followed by a clustering.
    if not of_method or of_method[0].build()[0].online.cluster_projector is None:
        after = [case for case in cases if case.registry == "clustering"]
        runs += [[*runs[0], *_stage_names(after, clustering)] for clustering in CLUSTERINGS]
    assert all(len(set(names)) == len(names) for names in runs)


def test_the_stages_of_every_clustering_are_tested(cases):
    assert {case.name for case in cases if case.registry == "clustering"} == {
        "mcc",
        "cc",
        "kmeans",
        "informative",
        "lloyd",
        "landmarks",
        "neighbours",
        "k-fed",
        "matrix-factorisation",
    }


def test_declared_parts_exist_and_what_is_frozen_is_not_trained(case):
    net, stage = case.build()
    for part in (*stage.trained, *stage.frozen):
        net.get_submodule(part)
    assert all(part in net.state_dict() or net.get_submodule(part) for part in stage.shared)
    trained = set(select(net.state_dict(), stage.trained))
    assert not trained & set(select(net.state_dict(), stage.frozen))
    assert stage.rounds >= 1
    assert stage.epochs >= (1 if stage.trained else 0)


def test_outputs_are_a_named_tuple_with_a_row_per_image(training_case):
    net, stage = training_case.build()
    outputs = stage.represent(net, *training_case.batch(5)[:])
    assert outputs._fields
    assert all(isinstance(output, Tensor) and len(output) == 5 for output in outputs)


@pytest.mark.parametrize("rows", [slice(0, 3), slice(3, 4), slice(1, 7, 2)])
def test_any_slice_of_a_batch_gives_the_same_rows(training_case, rows):
    net, stage = training_case.build()
    net.eval()  # BatchNorm, where a method has it, mixes the rows of a batch in train mode
    batch = training_case.batch(7)
    whole = stage.represent(net, *batch[:])
    part = stage.represent(net, *batch[rows])
    for output, expected in zip(part, whole, strict=True):
        torch.testing.assert_close(output, expected[rows], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [2, 16])
def test_loss_is_a_finite_number_with_a_gradient_for_every_trained_part(training_case, n):
    net, stage = training_case.build()
    trainable(net, stage)
    loss = stage.loss(stage.represent(net, *training_case.batch(n)[:]))
    loss.backward()
    assert loss.shape == ()
    assert torch.isfinite(loss)
    for part in stage.trained if n > 2 or training_case.name != "jule" else ():  # a triplet has three images
        gradients = [parameter.grad for parameter in net.get_submodule(part).parameters()]
        assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)
        assert all(gradient is None or torch.isfinite(gradient).all() for gradient in gradients)


def test_a_step_changes_what_is_trained_and_else_only_the_target(training_case):
    net, stage = training_case.build()
    before = deepcopy(dict(net.named_parameters()))
    optimizer = Training().build_optimizer(trainable(net, stage))
    list(train(net, stage, [training_case.batch(8)], optimizer))
    changed = {key for key, value in net.named_parameters() if not torch.equal(value, before[key])}
    allowed = set(select(before, (*stage.trained, "target")))
    assert changed <= allowed
    for part in stage.trained:
        assert changed & set(select(before, (part,)))


def test_steps_of_the_optimiser_lower_the_loss_of_a_batch(training_case):
    """What follows a step, such as a queue that fills, is left out: it may raise the loss."""
    net, stage = training_case.build()
    optimizer = Training(learning_rate=3e-3).build_optimizer(trainable(net, stage))
    images = Synthetic(samples=16, size=8, channels=1).load().images
    source = BatchSource(images, preset("digits"), 16, torch.device("cpu"))
    (batch,) = source.epoch(stage.sees, net.notes, torch.Generator().manual_seed(0))
    losses = []
    for _ in range(20):
        losses.append(stage.loss(stage.represent(net, *batch[:])))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.01


def _replies(net, stage):
    """What two clients of the same 40 images answer."""
    shared = detached(select(net.state_dict(), stage.shared))
    images = torch.from_numpy(Synthetic(samples=40, size=8, channels=1).load().images)
    net.notes = stage.first_notes(net, len(images))
    extras = detached(stage.extras(net, preset("digits").plain(images).split(16)))
    return [Update(client, stage.name, 1, 40, 0.5, shared, extras) for client in range(2)]


def test_the_servers_step_answers_with_weights_of_the_model_and_all_that_was_trained(case):
    net, stage = case.build()
    updates, model = _replies(net, stage), detached(net.state_dict())
    weights, back = stage.combine(updates, model)
    assert weights.keys() <= model.keys()
    assert select(weights, stage.trained).keys() == select(model, stage.trained).keys()
    assert all(weights[key].shape == model[key].shape for key in weights)
    assert all(isinstance(value, Tensor) for value in back.values())


def test_a_stage_objects_to_extras_that_its_clients_do_not_send(case):
    net, stage = case.build()
    update = _replies(net, stage)[0]
    assert stage.extras_error(update) == ""
    hostile = [{**update.extras, "more": torch.zeros(1)}]
    hostile += [{**update.extras, key: value[None]} for key, value in update.extras.items()]
    hostile += [{**update.extras, key: value.to(torch.int8)} for key, value in update.extras.items()]
    hostile += [
        {**update.extras, key: F.pad(value, (0, 1))} for key, value in update.extras.items() if value.dim()
    ]
    hostile += [{key: value for key, value in update.extras.items() if key != name} for name in update.extras]
    for extras in hostile:
        assert stage.extras_error(replace(update, extras=extras)).endswith(".")


def test_extras_that_are_hidden_by_secure_aggregation_are_all_extras_in_their_declared_form(case):
    net, stage = case.build()
    update = _replies(net, stage)[0]
    additive = stage.additive(update.weights)
    if additive is None:  # refused with secure aggregation: the server needs more than sums
        assert update.extras or type(stage).combine is not Stage.combine
        return
    declared = {name: (extra.dtype, extra.shape) for name, extra in additive.items()}
    assert declared == {name: (value.dtype, tuple(value.shape)) for name, value in update.extras.items()}


@over_entries
def test_fields_that_may_be_left_open_are_open_by_default(kind):
    """None is not written to config.toml: reading it back must give None again."""
    for field in fields(kind):
        if "None" in str(field.type):
            assert field.default is None
