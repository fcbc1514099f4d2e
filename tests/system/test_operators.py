"""Mistakes of operators and sites give one error line and exit code 2, and change nothing."""

import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Command = Callable[..., Result]
INIT = ("federation", "init", "fed", "--sites", "north,south", "--host", "fed.example.org")


def test_creating_a_federation_lists_the_folders_to_send_and_the_expiry_dates(fedmcc: Command) -> None:
    result = fedmcc(*INIT, "--days", 10)
    assert result.exit_code == 0
    assert result.stderr.count("over a secure channel, since it contains a private key") == 2
    assert "The server's certificate expires on 2" in result.stderr
    assert "The authority expires on 2" in result.stderr


def test_the_federation_of_the_readme_is_ten_lines_of_existing_commands(fedmcc: Command) -> None:
    root = Path(__file__).parents[2]
    block = (root / "README.md").read_text().split("## A real federation")[1].split("```")[1]
    lines = [shlex.split(line, comments=True) for line in block.splitlines()[1:]]
    assert len(lines) == 10
    for program, *arguments in lines:
        if program == "fedmcc":
            result = fedmcc(*(argument for argument in arguments if argument != "&"), "--help")
            assert result.exit_code == 0, result.output
        paths = [argument for argument in arguments if argument.startswith(("recipes/", "examples/"))]
        assert all((root / path).exists() for path in paths)


def test_creating_a_federation_twice_is_refused(
    fedmcc: Command, refused: Callable[..., str], tmp_path: Path
) -> None:
    fedmcc(*INIT)
    key = (tmp_path / "fed/authority/ca.key").read_bytes()
    assert refused(*INIT).startswith("fed is not empty: choose a new folder")
    assert (tmp_path / "fed/authority/ca.key").read_bytes() == key


@pytest.mark.parametrize(
    "argv",
    [
        ("federation", "status", "nowhere"),
        ("federation", "stop", "nowhere"),
        ("federation", "renew", "nowhere"),
        ("federation", "add", "nowhere", "--site", "west"),
    ],
)
def test_a_folder_that_is_not_a_federation_is_refused(refused: Callable[..., str], argv: tuple[str]) -> None:
    assert "create a federation with `fedmcc federation init`" in refused(*argv)


def test_a_server_needs_a_recipe_that_exists(fedmcc: Command, refused: Callable[..., str]) -> None:
    fedmcc(*INIT)
    assert refused("server", "start", "fed", "no.toml").startswith("There is no recipe at no.toml")


def test_a_finished_run_is_left_alone_and_no_other_is_started(fedmcc: Command, tmp_path: Path) -> None:
    fedmcc(*INIT)
    (tmp_path / "recipe.toml").write_text("clusters = 2\n")
    done = tmp_path / "fed/runs/recipe-001"
    done.mkdir(parents=True)
    (done / "scores.json").write_text("{}")
    result = fedmcc("server", "start", "fed", "recipe.toml", "--run", done)
    assert (result.exit_code, result.stderr) == (
        0,
        f"The run in {done} is complete: start another one with --run.\n",
    )
    assert [run.name for run in done.parent.iterdir()] == ["recipe-001"]
    assert not (tmp_path / "fed/server/logs").exists()


def test_a_started_run_refuses_another_recipe(
    fedmcc: Command, refused: Callable[..., str], tmp_path: Path
) -> None:
    fedmcc(*INIT)
    (tmp_path / "recipe.toml").write_text("clusters = 2\n")
    started = tmp_path / "fed/runs/recipe-001"
    started.mkdir(parents=True)
    (started / "config.toml").write_text("clusters = 3\n")
    sentence = refused("server", "start", "fed", "recipe.toml")
    assert sentence.startswith(f"{started} was started with another value of clusters: restore the recipe")
    assert not (tmp_path / "fed/server/logs").exists()


@pytest.mark.parametrize(
    ("option", "values", "remedy"),
    [
        ("--min-sites", (0, -1, 3), "give a number from 1 to 2."),
        ("--wait", (0, -1, "nan", "inf"), "give seconds above 0."),
        ("--round-timeout", (0, -5), "give seconds above 0."),
    ],
)
def test_options_with_which_no_run_could_start_are_refused(
    fedmcc: Command, refused: Callable[..., str], option: str, values: tuple[object, ...], remedy: str
) -> None:
    fedmcc(*INIT)
    Path("recipe.toml").write_text("clusters = 2\n")
    for value in values:
        assert (
            refused("server", "start", "fed", "recipe.toml", option, value)
            == f"{option} is {value}: {remedy}"
        )


def test_a_server_without_nginx_starts_nothing_and_names_the_remedy(
    fedmcc: Command, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fedmcc(*INIT)
    (tmp_path / "recipe.toml").write_text("clusters = 2\n")
    monkeypatch.setattr("fedmcc.deployment.setup.nginx.find_nginx", lambda: None)
    sentence = refused("server", "start", "fed", "recipe.toml")
    assert sentence.startswith("nginx is not installed")
    assert sentence.endswith("install it, or test the federation on this machine only with --no-proxy.")
    assert not (tmp_path / "fed/server/logs").exists()


def test_a_site_needs_its_folder_and_its_images(fedmcc: Command, refused: Callable[..., str]) -> None:
    fedmcc(*INIT)
    assert "ask the operator for the folder" in refused("site", "start", "nowhere", "--data", "fed")
    sentence = refused("site", "start", "fed/sites/north", "--data", "nowhere")
    assert "give the folder of your images as --data" in sentence
    Path("fed/sites/north/site.key").unlink()
    assert "site.key is missing" in refused("site", "start", "fed/sites/north", "--data", "fed")


def test_stopping_a_server_that_is_not_running_changes_nothing(fedmcc: Command) -> None:
    fedmcc(*INIT)
    result = fedmcc("federation", "stop", "fed")
    assert (result.exit_code, result.stderr) == (0, "The server was not running.\n")


def test_a_watched_status_is_shown_again_until_it_is_interrupted(
    fedmcc: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    fedmcc(*INIT)
    monkeypatch.setattr(time, "sleep", sleep)
    result = fedmcc("federation", "status", "fed", "--watch", "--json")
    assert result.stdout.count('"running": false') == 2
    assert (slept, result.exit_code) == ([5.0, 5.0], 130)


def test_a_new_federation_has_a_status(fedmcc: Command) -> None:
    fedmcc(*INIT)
    shown = fedmcc("federation", "status", "fed").stdout
    assert "not running. No run was started yet." in shown
    assert "north" in shown
    assert "south" in shown
