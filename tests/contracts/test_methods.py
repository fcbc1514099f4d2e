"""What every method promises: registering one in METHODS is testing it."""

from copy import deepcopy
from dataclasses import fields, is_dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedmcc.data.synthetic import Synthetic
from fedmcc.messages import Task, Update
from fedmcc.methods import METHODS
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.numerics.state_dicts import detached, select
from fedmcc.training.loop import Training, train, trainable
from fedmcc.views import preset

STAGES = [(name, number) for name, kind in METHODS.items() for number in range(len(kind().stages()))]
TRAINING = [(name, number) for name, number in STAGES if METHODS[name]().stages()[number].trained]
over_stages = pytest.mark.parametrize(("name", "number"), STAGES)
over_training = pytest.mark.parametrize(("name", "number"), TRAINING)


def _small(kind):
    """The method with its defaults, but layers and queues of thousands cut down to 32: tests are short."""
    return kind(
        **{field.name: 32 for field in fields(kind) if type(field.default) is int and field.default > 64}
    )


def _built(name, number=0):
    encoder = ConvNetOptions(width=4, norm="group").build(1, 8)
    method = _small(METHODS[name])
    net = method.build(encoder, encoder.features, 4)
    initialise(net, torch.Generator().manual_seed(0))
    stage = method.stages()[number]
    memory = {"samples": torch.tensor(16)}  # as a client puts it in
    stage.receive(net, Task(0, stage.name, 1, detached(select(net.state_dict(), stage.shared))), memory)
    return net, stage


def _views(n, seed=0):
    a, b = torch.rand(2, n, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    return a, b


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_a_frozen_dataclass_with_defaults_and_a_sentence(name):
    kind = METHODS[name]
    assert is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    assert kind() == kind()  # every field has a default
    assert kind.__doc__.strip().splitlines()[0].endswith(".")
    assert not kind.__doc__.startswith(f"{kind.__name__}(")  # the docstring that dataclass makes up


@pytest.mark.parametrize("name", METHODS)
def test_stages_have_names_of_their_own_that_fit_in_a_file_name(name):
    names = [stage.name for stage in METHODS[name]().stages()]
    assert names
    assert len(set(names)) == len(names)
    assert all(name.replace("_", "").replace("-", "").isalnum() for name in names)


@over_stages
def test_declared_parts_exist_and_what_is_frozen_is_not_trained(name, number):
    net, stage = _built(name, number)
    for part in (*stage.trained, *stage.shared, *stage.frozen):
        net.get_submodule(part)
    trained = set(select(net.state_dict(), stage.trained))
    assert not trained & set(select(net.state_dict(), stage.frozen))
    assert stage.rounds >= 1
    assert stage.epochs >= (1 if stage.trained else 0)


@over_training
def test_outputs_are_a_named_tuple_with_a_row_per_image(name, number):
    net, stage = _built(name, number)
    outputs = stage.represent(net, *_views(5))
    assert outputs._fields
    assert all(isinstance(output, Tensor) and len(output) == 5 for output in outputs)


@over_training
@pytest.mark.parametrize("rows", [slice(0, 3), slice(3, 4), slice(1, 7, 2)])
def test_any_slice_of_a_batch_gives_the_same_rows(name, number, rows):
    net, stage = _built(name, number)
    net.eval()  # BatchNorm, where a method has it, mixes the rows of a batch in train mode
    a, b = _views(7)
    whole, part = stage.represent(net, a, b), stage.represent(net, a[rows], b[rows])
    for output, expected in zip(part, whole, strict=True):
        torch.testing.assert_close(output, expected[rows], rtol=1e-5, atol=1e-6)


@over_training
@pytest.mark.parametrize("n", [2, 16])
def test_loss_is_a_finite_number_with_a_gradient_for_every_trained_part(name, number, n):
    net, stage = _built(name, number)
    trainable(net, stage)
    loss = stage.loss(stage.represent(net, *_views(n)))
    loss.backward()
    assert loss.shape == ()
    assert torch.isfinite(loss)
    for part in stage.trained:
        gradients = [parameter.grad for parameter in net.get_submodule(part).parameters()]
        assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)
        assert all(gradient is None or torch.isfinite(gradient).all() for gradient in gradients)


@over_training
def test_a_step_changes_what_is_trained_and_else_only_the_target(name, number):
    net, stage = _built(name, number)
    before = deepcopy(dict(net.named_parameters()))
    optimizer = Training().build_optimizer(trainable(net, stage))
    list(train(net, stage, [_views(8)], optimizer))
    changed = {key for key, value in net.named_parameters() if not torch.equal(value, before[key])}
    allowed = set(select(before, (*stage.trained, "target")))
    assert changed <= allowed
    for part in stage.trained:
        assert changed & set(select(before, (part,)))


@over_training
def test_steps_of_the_optimiser_lower_the_loss_of_a_batch(name, number):
    """What follows a step, such as a queue that fills, is left out: it may raise the loss."""
    net, stage = _built(name, number)
    optimizer = Training(learning_rate=3e-3).build_optimizer(trainable(net, stage))
    images = torch.from_numpy(Synthetic(samples=16, size=8, channels=1).load().images)
    draw = torch.Generator().manual_seed(0)
    a, b = (preset("digits")(images, draw) for _ in range(2))
    losses = []
    for _ in range(20):
        losses.append(stage.loss(stage.represent(net, a, b)))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.01


def _replies(net, stage):
    """What two clients of the same 40 images answer."""
    shared = detached(select(net.state_dict(), stage.shared))
    images = torch.from_numpy(Synthetic(samples=40, size=8, channels=1).load().images)
    extras = detached(stage.extras(net, preset("digits").plain(images).split(16)))
    return [Update(client, stage.name, 1, 40, 0.5, shared, extras) for client in range(2)]


@over_stages
def test_the_servers_step_answers_with_weights_of_the_model_and_all_that_was_trained(name, number):
    net, stage = _built(name, number)
    updates, model = _replies(net, stage), detached(net.state_dict())
    weights, back = stage.combine(updates, model)
    assert weights.keys() <= model.keys()
    assert select(weights, stage.trained).keys() == select(model, stage.trained).keys()
    assert all(weights[key].shape == model[key].shape for key in weights)
    assert all(isinstance(value, Tensor) for value in back.values())


@over_stages
def test_a_stage_objects_to_extras_that_its_clients_do_not_send(name, number):
    net, stage = _built(name, number)
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


@pytest.mark.parametrize("name", METHODS)
def test_fields_that_may_be_left_open_are_open_by_default(name):
    """None is not written to config.toml: reading it back must give None again."""
    for field in fields(METHODS[name]):
        if "None" in str(field.type):
            assert field.default is None
