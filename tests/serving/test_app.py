"""The API answers as the commands do, protects changes, and shows nothing else."""

import csv
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from fedmcc.runs.directory import Run
from fedmcc.runs.predict import predict
from fedmcc.serving.limits import Limits
from fedmcc.serving.service import Service

pytestmark = pytest.mark.slow  # takes seconds

Asked = Callable[..., httpx.Response]
Table = dict[str, dict[str, str]]


def test_an_image_gets_the_cluster_that_predict_gives(
    ask: Asked, predicted: Table, image_folder: Path
) -> None:
    for name, row in list(predicted.items())[:6]:
        answer = ask("POST", "/api/predict", content=(image_folder / name).read_bytes()).json()
        assert (answer["cluster"], answer["second"]) == (int(row["cluster"]), int(row["second"]))
        assert answer["confidence"] == pytest.approx(float(row["confidence"]), abs=1e-3)
        assert answer["outlier"] == (row["kind"] == "outlier")
        assert answer["thumbnail"].startswith("data:image/webp;base64,")


def test_clusters_and_members_are_those_of_the_table(ask: Asked, run: Run) -> None:
    with run.assignments_file.open(newline="") as file:
        table = list(csv.DictReader(file))
    sizes = Counter(int(row["cluster"]) for row in table)
    found = ask("GET", "/api/clusters").json()
    assert {entry["cluster"]: entry["size"] for entry in found} == {key: sizes[key] for key in range(4)}
    cluster = max(sizes, key=lambda key: sizes[key])
    own = sorted((row for row in table if int(row["cluster"]) == cluster), key=lambda r: float(r["distance"]))
    page = ask("GET", f"/api/clusters/{cluster}/members?start=1&count=3").json()
    assert page["total"] == sizes[cluster]
    assert [member["image"] for member in page["members"]] == [row["image"] for row in own[1:4]]


def test_members_of_unknown_clusters_and_senseless_questions_are_refused(ask: Asked) -> None:
    assert ask("GET", "/api/clusters/9/members").status_code == 404
    for query in ("count=100000", "start=-1", "order=sideways"):
        answer = ask("GET", f"/api/clusters/0/members?{query}")
        assert (answer.status_code, answer.json()["detail"].count("\n")) == (422, 0)


def test_names_and_merges_are_stored_used_and_written_to_the_table(
    ask: Asked, token: dict[str, str], predicted: Table, service: Service, image_folder: Path
) -> None:
    before, run = predicted, service.run
    target, source = sorted({int(row["cluster"]) for row in before.values()})[:2]
    name = next(name for name, row in before.items() if int(row["cluster"]) == source)
    ask("POST", f"/api/clusters/{target}/merge", json={"others": [source]}, headers=token)
    named = ask("PUT", f"/api/clusters/{target}/name", json={"name": "both <b>"}, headers=token)
    assert source not in [entry["cluster"] for entry in named.json()]
    answer = ask("POST", "/api/predict", content=(image_folder / name).read_bytes()).json()
    assert (answer["cluster"], answer["title"]) == (target, f"{target}: both <b>")
    service.close()
    assert json.loads((run.path / "clusters.json").read_text())["merged"] == {str(source): target}
    with run.assignments_file.open(newline="") as file:
        assert {row["name"] for row in csv.DictReader(file) if row["cluster"] == str(target)} == {"both <b>"}


def test_changes_need_the_token_and_wrong_ones_change_nothing(
    ask: Asked, run: Run, token: dict[str, str]
) -> None:
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic YTpi"},
    ):
        answer = ask("PUT", "/api/clusters/1/name", json={"name": "x"}, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    for path, body in (("9/name", {"name": "x"}), ("1/name", {"name": "x" * 300}), ("1/name", {})):
        assert ask("PUT", f"/api/clusters/{path}", json=body, headers=token).status_code in (400, 422)
    assert ask("POST", "/api/clusters/1/merge", json={"others": []}, headers=token).status_code == 400
    large = json.dumps({"name": "x" * 100_000}).encode()
    assert ask("PUT", "/api/clusters/1/name", content=large, headers=token).status_code == 413
    assert not (run.path / "clusters.json").exists()


def test_from_other_machines_everything_but_the_empty_page_needs_the_token(
    ask: Asked, token: dict[str, str], good: bytes
) -> None:
    other = {"host": "clusters.example:8000"}
    for path in ("/api/run", "/api/clusters", "/api/openapi.json"):
        assert ask("GET", path, loopback=False, headers=other).status_code == 401
        assert ask("GET", path, loopback=False, headers=other | token).status_code == 200
    assert ask("POST", "/api/predict", loopback=False, content=good).status_code == 401
    assert ask("GET", "/", loopback=False, headers=other).status_code == 200


def test_other_hosts_and_pages_of_other_origins_are_refused(ask: Asked, good: bytes) -> None:
    assert ask("GET", "/api/run", headers={"host": "attacker.example"}).status_code == 400
    assert ask("GET", "/api/run", headers={"host": "localhost:8000"}).status_code == 200
    for origin in ("http://attacker.example", "null", "http://127.0.0.1:9999"):
        answer = ask("POST", "/api/predict", content=good, headers={"origin": origin})
        assert answer.status_code == 403
    own = {"origin": "http://127.0.0.1:8000"}
    assert ask("POST", "/api/predict", content=good, headers=own).status_code == 200


@pytest.mark.parametrize(
    "path", ["../page.py", "%2e%2e/page.py", "..%2f..%2flimits.py", "page.html", "/etc/passwd"]
)
def test_no_other_file_can_be_read(ask: Asked, path: str) -> None:
    assert ask("GET", f"/static/{path}").status_code == 404


def test_every_answer_has_the_security_headers(ask: Asked) -> None:
    answers = [ask("GET", path) for path in ("/", "/static/page.js", "/api/run", "/nothing")]
    answers.append(ask("POST", "/api/predict", content=b"junk"))
    for answer in answers:
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Cache-Control"] == "no-store"


def test_openapi_describes_every_route_and_nothing_comes_from_other_servers(ask: Asked) -> None:
    paths = ask("GET", "/api/openapi.json").json()["paths"]
    assert set(paths) == {
        "/api/run",
        "/api/clusters",
        "/api/clusters/{cluster}/members",
        "/api/clusters/{cluster}/name",
        "/api/clusters/{cluster}/merge",
        "/api/predict",
    }
    assert ask("GET", "/docs").status_code == 404
    for path in ("/", "/static/page.js", "/static/style.css", "/static/theme.css"):
        assert "http" not in ask("GET", path).text.replace("http-equiv", "")


def test_without_its_images_a_run_still_classifies(run: Run, image_folder: Path, tmp_path: Path) -> None:
    text = run.config_file.read_text().replace(str(image_folder), str(tmp_path / "gone"))
    run.config_file.write_text(text)
    service = Service(run, Limits())
    assert service.summary().notice.startswith("The images of the run cannot be shown.")
    assert service.classify((image_folder / "00.png").read_bytes()).cluster in range(4)
    assert [entry.typical for entry in service.clusters()] == [[]] * 4
    service.close()


def test_a_photograph_is_turned_upright_as_in_a_run(ask: Asked, tmp_path: Path, run: Run) -> None:
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:8] = 255
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    row = next(csv.DictReader(predict(run, tmp_path / "turned.png").csv.splitlines()))
    answer = ask("POST", "/api/predict", content=(tmp_path / "turned.png").read_bytes()).json()
    assert answer["confidence"] == pytest.approx(float(row["confidence"]), abs=1e-3)
