import json

import pytest

from fedmcc.errors import InputError
from fedmcc.runs.directory import FORMAT, Run, create_run, load_run, next_free


@pytest.fixture
def run(tmp_path):
    return create_run(tmp_path / "run", "seed = 0\n", {"fedmcc": "1"})


def _log(run, count):
    rows = [{"stage": "joint", "round": number, "loss": 1 / number} for number in range(1, count + 1)]
    for row in rows:
        run.log(row)
    return rows


def test_a_new_run_can_be_opened_and_is_not_finished(run):
    opened = load_run(run.path)
    assert opened == run
    assert opened.config_file.read_text() == "seed = 0\n"
    assert opened.read_json("environment.json") == {"format": FORMAT, "fedmcc": "1"}
    assert not opened.finished
    assert opened.rows() == []


def test_logged_rows_come_back_exactly_one_line_each(run):
    rows = _log(run, 3)
    assert run.rows() == rows
    assert [json.loads(line) for line in run.metrics_file.read_text().split("\n")[:-1]] == rows


def test_a_row_with_a_number_that_json_cannot_hold_is_refused_and_not_written(run):
    _log(run, 1)
    with pytest.raises(ValueError, match="JSON"):
        run.log({"loss": float("nan")})
    assert len(run.rows()) == 1


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_last_line_cut_short_is_left_out_and_truncation_removes_it(run, cut):
    rows = _log(run, 2)
    whole = run.metrics_file.read_bytes()
    run.metrics_file.write_bytes(whole + json.dumps({"stage": "joint", "round": 3}).encode()[:cut])
    assert run.rows() == rows
    run.truncate_rows(2)
    assert run.metrics_file.read_bytes() == whole


def test_a_last_line_of_bytes_that_are_not_text_is_left_out(run):
    rows = _log(run, 1)
    with run.metrics_file.open("ab") as file:
        file.write(b"\xff\xfe\x00\x00")
    assert run.rows() == rows


def test_a_damaged_line_in_the_middle_is_named(run):
    _log(run, 3)
    lines = run.metrics_file.read_text().splitlines()
    run.metrics_file.write_text("\n".join([lines[0], lines[1][:9], lines[2]]) + "\n")
    with pytest.raises(InputError, match=r"Line 2 of .*metrics\.jsonl is damaged"):
        run.rows()


def test_truncation_keeps_the_first_rows_bit_identical(run):
    rows = _log(run, 4)
    before = run.metrics_file.read_text().splitlines(keepends=True)
    run.truncate_rows(3)
    assert run.rows() == rows[:3]
    assert run.metrics_file.read_text() == "".join(before[:3])
    run.truncate_rows(0)
    assert run.rows() == []


def test_a_run_of_a_newer_format_is_refused(run):
    run.write_json("environment.json", {"format": FORMAT + 1})
    with pytest.raises(InputError, match=rf"run format {FORMAT + 1} .* reads up to {FORMAT}: update fedmcc"):
        load_run(run.path)


@pytest.mark.parametrize("content", ["{", "[1]", "\x00"])
def test_a_damaged_json_file_is_named(run, content):
    (run.path / "environment.json").write_text(content)
    with pytest.raises(InputError, match=r"environment\.json is damaged"):
        load_run(run.path)


def test_a_folder_that_is_not_a_run_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "absent", tmp_path / "empty"):
        with pytest.raises(InputError, match=r"is not a run directory"):
            load_run(path)


def test_a_folder_in_use_is_refused_and_not_changed(run, tmp_path):
    with pytest.raises(
        InputError, match=r"is not empty: resume its run with `fedmcc resume .*run`, or choose another folder"
    ):
        create_run(run.path, "seed = 1\n", {})
    assert run.config_file.read_text() == "seed = 0\n"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"is not empty: choose another folder with --out\."):
        create_run(tmp_path / "mine", "", {})
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_file_where_the_folder_should_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"Cannot use .*file for the run"):
        create_run(tmp_path / "file", "", {})


def test_the_first_free_number_is_taken(tmp_path):
    assert next_free(tmp_path / "runs", "demo") == tmp_path / "runs" / "demo-001"
    for name in ("demo-001", "demo-003", "other-002", "demo-002x"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert next_free(tmp_path / "runs", "demo") == tmp_path / "runs" / "demo-002"


def test_a_run_is_finished_when_its_scores_are_there(run):
    run.write_json(run.scores_file.name, {"images": 3})
    assert Run(run.path).finished


def test_two_processes_cannot_work_on_a_run_at_once(run):
    in_use = pytest.raises(InputError, match="in use by another process")
    with run.locked(), in_use, load_run(run.path).locked():
        pass
    with run.locked():  # released afterwards
        pass
