"""What the owner of a site allows: other recipes are refused before an image is read, with the reason."""

import time

import pytest

from fedmcc import config
from fedmcc.deployment.messages import Greeting, SiteTask
from fedmcc.deployment.recipes import recipe_hash
from fedmcc.deployment.site.memory import RefusalError
from fedmcc.deployment.site.policy import SitePolicy, parse_policy, required
from fedmcc.deployment.site.worker import SiteWorker
from fedmcc.errors import InputError
from fedmcc.messages import Task
from fedmcc.runs.resolve import with_statistics

TABLE = {
    "clusters": 3,
    "method": {"name": "fedmcc", "rounds": 4, "epochs": 2},
    "clustering": {"name": "mcc", "rounds": 3, "epochs": 5},
    "federation": {"minimum": 2},
    "privacy": {"clip": 1.0, "noise": 2.0},
}
HASH = recipe_hash(config.dump(config.parse(TABLE)))


def recipe(**changes):
    return config.parse(
        {key: {**TABLE[key], **changes[key]} if key in changes else TABLE[key] for key in TABLE}
    )


EVERYTHING_ALLOWED = {
    "methods": ["fedmcc", "mcc"],
    "recipes": [HASH],
    "max_rounds": 7,
    "max_epochs": 5,
    "min_participants": 2,
    "max_clip": 1,
    "min_noise": 2.0,
}
REFUSED = {
    "methods": (["mcc"], "does not allow the method fedmcc."),
    "recipes": (["0" * 64], f"does not list the recipe {HASH}."),
    "max_rounds": (6, "allows 6 rounds, but the recipe has 7."),
    "max_epochs": (4, "allows 4 epochs in a round, but the recipe has 5."),
    "min_participants": (3, "requires federation.minimum of at least 3, but the recipe has 2."),
    "max_clip": (0.5, "requires privacy.clip of at most 0.5, but the recipe has 1.0."),
    "min_noise": (2.5, "requires privacy.noise of at least 2.5, but the recipe has 2."),
}


def test_a_recipe_at_every_limit_is_allowed():
    assert parse_policy(EVERYTHING_ALLOWED).objection(recipe()) == ""
    assert parse_policy({}).objection(recipe()) == ""


@pytest.mark.parametrize("policy", [{"secure_aggregation": True}, {}])
def test_a_site_can_demand_secure_aggregation_in_its_policy_or_on_the_command_line(policy):
    demanding = required(parse_policy(policy), "" if policy else "secure-aggregation")
    reason = "The policy of the site requires federation.secure_aggregation, but the recipe does not set it."
    assert demanding.objection(recipe()) == reason
    secure = {"secure_aggregation": True}
    assert demanding.objection(recipe(federation=secure)) == ""
    readable = recipe(federation={**secure, "open_statistics": True})
    assert "does not allow federation.open_statistics" in demanding.objection(readable)
    assert parse_policy({**secure, "open_statistics": True}).objection(readable) == ""


def test_an_unknown_requirement_is_refused():
    with pytest.raises(InputError, match="Did you mean 'secure-aggregation'"):
        required(SitePolicy(), "secure-agregation")


@pytest.mark.parametrize("key", REFUSED)
def test_a_recipe_beyond_one_limit_is_refused_with_the_limit(key):
    value, reason = REFUSED[key]
    objection = parse_policy({**EVERYTHING_ALLOWED, key: value}).objection(recipe())
    assert objection == f"The policy of the site {reason}"
    assert len(objection) <= 200  # the server's log has all of it


def test_noise_that_everybody_can_predict_does_not_count():
    reproducible = recipe(privacy={"reproducible": True})
    assert "does not allow privacy.reproducible" in SitePolicy(min_noise=1.0).objection(reproducible)


def test_a_recipe_without_clipping_is_refused_if_the_site_limits_it():
    assert "privacy.clip of at most 1" in SitePolicy(max_clip=1.0).objection(config.parse({"clusters": 3}))


def test_the_clustering_after_a_method_must_be_allowed_too():
    after = config.parse({"clusters": 3, "method": {"name": "fedema"}, "clustering": {"name": "kmeans"}})
    assert "does not allow the method kmeans" in SitePolicy(methods=("fedema",)).objection(after)
    assert SitePolicy(methods=("fedema", "kmeans")).objection(after) == ""


@pytest.mark.parametrize("stated", [{"smallest": 1}, {"prototypes": 20.0}])
def test_the_hash_covers_the_options_of_statistics_that_the_server_completes(stated):
    recipes = [config.parse({"clusters": 3, "clustering": options}) for options in ({}, stated)]
    recipes.append(with_statistics(recipes[0], None))
    unstated, other, completed = (recipe_hash(config.dump(recipe)) for recipe in recipes)
    assert unstated == completed != other


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"partition": {"clients": 9}, "engine": {"name": "pool"}}, True),  # the server completes them
        ({"views": {"size": 8}, "data": {"root": "/elsewhere"}}, True),
        ({"seed": 1}, False),
        ({"method": {**TABLE["method"], "epochs": 3}}, False),
        ({"training": {"batch_size": 16}}, False),
    ],
)
def test_the_hash_of_a_recipe_covers_what_a_site_trains(changes, same):
    assert (recipe_hash(config.dump(config.parse({**TABLE, **changes}))) == HASH) is same


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"max_round": 3}, "Unknown key in .policy. of site.toml 'max_round'. Did you mean 'max_rounds'"),
        ({"max_rounds": "3"}, "max_rounds in .policy. of site.toml is '3': give a whole number above 0"),
        ({"max_rounds": True}, "give a whole number above 0"),
        ({"methods": "fedmcc"}, "give a list of texts"),
        ({"max_clip": float("nan")}, "give a number above 0"),
    ],
)
def test_a_policy_that_could_be_misread_is_an_error(table, reason):
    with pytest.raises(InputError, match=reason):
        parse_policy(table)


def test_neither_a_greeting_nor_a_task_reaches_the_images(tmp_path, monkeypatch):
    monkeypatch.setattr(SiteWorker, "_images", None)  # is not called
    site, text = SiteWorker("a", tmp_path, policy=SitePolicy(max_rounds=6)), config.dump(recipe())
    with pytest.raises(RefusalError, match="allows 6 rounds"):
        site.hello(Greeting(text))
    with pytest.raises(RefusalError, match="allows 6 rounds"):
        site.answer(SiteTask("run", text, "", None, Task(0, "representation", 1, {})), time.time())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_both_logs_have_the_reason_and_the_other_sites_go_on(three, caplog):
    federation = three()
    file = federation.operator.site("b").config_file
    file.write_text(file.read_text() + "[policy]\nmax_rounds = 2\n")
    next(federation.serve())
    reason = "The policy of the site allows 2 rounds, but the recipe has 3."
    logged = [record.getMessage() for record in caplog.records if record.name.endswith(("app", "membership"))]
    assert reason in logged
    assert f"Site b cannot join: {reason}" in logged
    assert federation.rows()[0]["participants"] == [0, 2]


@pytest.mark.slow
def test_a_policy_that_is_tightened_during_a_run_refuses_the_next_task(three, caplog):
    federation = three()
    rounds = federation.serve()
    next(rounds)
    file = federation.operator.site("b").config_file
    file.write_text(file.read_text() + '[policy]\nmethods = ["mcc"]\n')
    next(rounds)
    row = federation.rows()[1]
    assert row["participants"] == [0, 2]
    assert row["reasons"] == {"1": "The policy of the site does not allow the method fedema."}
