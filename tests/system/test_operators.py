"""What operators and sites get wrong is answered by one sentence and exit code 2, and destroys nothing."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Command = Callable[..., Result]
INIT = ("federation", "init", "fed", "--sites", "north,south", "--host", "fed.example.org")


@pytest.fixture
def refused(fedmcc: Command) -> Callable[..., str]:
    """Runs a command that must fail as a person's mistake; returns its one sentence."""

    def run(*words: object) -> str:
        result = fedmcc(*words)
        assert result.exit_code == 2, result.output
        (line,) = result.stderr.splitlines()
        return line.removeprefix("Error: ")

    return run


def test_founding_says_what_to_hand_out_and_when_certificates_end(fedmcc: Command) -> None:
    result = fedmcc(*INIT, "--days", 10)
    assert result.exit_code == 0
    said = result.stderr
    assert said.count("over a channel you trust") == 2
    assert "The server's certificate expires on 2" in said
    assert "The authority expires on 2" in said


def test_the_federation_of_the_readme_is_ten_lines_of_commands_that_exist(fedmcc: Command) -> None:
    root = Path(__file__).parents[2]
    block = (root / "README.md").read_text().split("## A real federation")[1].split("```")[1]
    lines = [shlex.split(line, comments=True) for line in block.splitlines()[1:]]
    assert len(lines) == 10
    for program, *words in lines:
        if program == "fedmcc":
            asked = fedmcc(*(word for word in words if word != "&"), "--help")
            assert asked.exit_code == 0, asked.output
        assert all((root / word).exists() for word in words if word.startswith(("recipes/", "examples/")))


def test_founding_twice_is_refused(fedmcc: Command, refused: Callable[..., str], tmp_path: Path) -> None:
    fedmcc(*INIT)
    key = (tmp_path / "fed/authority/ca.key").read_bytes()
    assert refused(*INIT).startswith("fed is not empty: choose a new folder")
    assert (tmp_path / "fed/authority/ca.key").read_bytes() == key


@pytest.mark.parametrize(
    "words",
    [
        ("federation", "status", "nowhere"),
        ("federation", "stop", "nowhere"),
        ("federation", "renew", "nowhere"),
        ("federation", "add", "nowhere", "--site", "west"),
    ],
)
def test_a_folder_that_is_no_federation_is_refused(refused: Callable[..., str], words: tuple[str]) -> None:
    assert "create a federation with `fedmcc federation init`" in refused(*words)


def test_a_server_needs_a_recipe_that_exists(fedmcc: Command, refused: Callable[..., str]) -> None:
    fedmcc(*INIT)
    assert refused("server", "start", "fed", "no.toml").startswith("There is no recipe at no.toml")


def test_a_finished_run_is_left_alone_and_no_other_begun(fedmcc: Command, tmp_path: Path) -> None:
    fedmcc(*INIT)
    (tmp_path / "recipe.toml").write_text("clusters = 2\n")
    done = tmp_path / "fed/runs/recipe-001"
    done.mkdir(parents=True)
    (done / "scores.json").write_text("{}")
    result = fedmcc("server", "start", "fed", "recipe.toml", "--run", done)
    assert (result.exit_code, result.stderr) == (0, f"The run in {done} is complete: --run begins another.\n")
    assert [run.name for run in done.parent.iterdir()] == ["recipe-001"]
    assert not (tmp_path / "fed/server/logs").exists()


def test_a_begun_run_refuses_another_recipe(
    fedmcc: Command, refused: Callable[..., str], tmp_path: Path
) -> None:
    fedmcc(*INIT)
    (tmp_path / "recipe.toml").write_text("clusters = 2\n")
    begun = tmp_path / "fed/runs/recipe-001"
    begun.mkdir(parents=True)
    (begun / "config.toml").write_text("clusters = 3\n")
    sentence = refused("server", "start", "fed", "recipe.toml")
    assert sentence.startswith(f"{begun} was begun with another clusters than the recipe has")
    assert not (tmp_path / "fed/server/logs").exists()


@pytest.mark.parametrize(
    ("option", "values", "remedy"),
    [
        ("--min-sites", (0, -1, 3), "give a number from 1 to 2."),
        ("--wait", (0, -1, "nan", "inf"), "give seconds above 0."),
        ("--round-timeout", (0, -5), "give seconds above 0."),
    ],
)
def test_what_no_federation_could_do_is_refused_at_once(
    fedmcc: Command, refused: Callable[..., str], option: str, values: tuple[object, ...], remedy: str
) -> None:
    fedmcc(*INIT)
    Path("recipe.toml").write_text("clusters = 2\n")
    for value in values:
        assert (
            refused("server", "start", "fed", "recipe.toml", option, value)
            == f"{option} is {value}: {remedy}"
        )


def test_a_server_without_nginx_says_what_to_do_and_starts_nothing(
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


def test_stopping_what_does_not_run_says_so(fedmcc: Command) -> None:
    fedmcc(*INIT)
    result = fedmcc("federation", "stop", "fed")
    assert (result.exit_code, result.stderr) == (0, "Nothing was running.\n")


def test_a_new_federation_has_a_status(fedmcc: Command) -> None:
    fedmcc(*INIT)
    shown = fedmcc("federation", "status", "fed").stdout
    assert "not running. No run was begun yet." in shown
    assert "north" in shown
    assert "south" in shown
