"""The folders of a federation: their content, their permissions, and input that is refused."""

import re
import shlex
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fedmcc.deployment.setup.create import (
    add_site,
    create_federation,
    expiry_dates,
    expiry_warning,
    old_keys,
    renew_certificate,
    revoke_site,
    rotate_key,
)
from fedmcc.deployment.setup.layout import FederationSpec, OperatorFolder
from fedmcc.errors import InputError


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_the_owner_can_read_private_keys_and_folders(operator: OperatorFolder) -> None:
    folders = [operator.path, *(path for path in operator.path.rglob("*") if path.is_dir())]
    keys = [*operator.path.rglob("*.key")]
    assert len(keys) == 5  # authority, server, Flower behind nginx, and two sites
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}


def test_a_sites_folder_has_its_own_key_and_no_other(operator: OperatorFolder) -> None:
    site = operator.site("north")
    secrets = [path.read_bytes() for path in operator.path.rglob("*.key") if path != site.key]
    held = b"".join(contents(site.path).values())
    assert not any(secret in held for secret in secrets)
    assert site.read() == ("north", "127.0.0.1:8000")


@pytest.mark.parametrize("server", ["host", ":8000", "host:", "host:abc", "host:0", "host:65536", "[::1]"])
def test_a_server_address_without_a_valid_port_is_refused(operator: OperatorFolder, server: str) -> None:
    site = operator.site("north")
    site.config_file.write_text(f'name = "north"\nserver = "{server}"\n')
    with pytest.raises(InputError, match=rf"has the invalid address '{re.escape(server)}': write it as"):
        site.read()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_key_that_other_users_can_read_is_refused_with_the_remedy(
    operator: OperatorFolder, mode: int
) -> None:
    site = operator.site("north")
    site.key.chmod(mode)
    with pytest.raises(InputError, match=rf"Other users can read {site.key}: run `chmod 600 {site.key}`"):
        site.read()
    site.key.chmod(0o600)
    site.read()


def settings(unit: Path) -> dict[str, list[str]]:
    """The settings of a unit as systemd parses them: arguments may be quoted, and %% stands for %."""
    pairs = [line.split("=", 1) for line in unit.read_text().splitlines() if re.match(r"\w+=", line)]
    return {key: shlex.split(value.replace("%%", "%")) for key, value in pairs}


def test_services_cache_images_in_a_folder_that_they_may_write(operator: OperatorFolder) -> None:
    units = [*operator.path.rglob("*.service")]
    assert len(units) == 3  # server and two sites
    for unit in map(settings, units):
        (writable,) = unit["ReadWritePaths"]
        assert unit["ProtectSystem"] == ["strict"]
        assert unit["Environment"] == [f"FEDMCC_DATA={writable}/cache"]


def test_a_unit_quotes_a_folder_name_that_systemd_would_split_and_expand(tmp_path: Path) -> None:
    folder = tmp_path / "our 100% own"
    operator = create_federation(folder, FederationSpec("host", 8000, 8001, ("a",)), 1)
    unit = settings(operator.server / "fedmcc-server.service")
    program, *arguments = unit["ExecStart"]
    assert program.endswith("/fedmcc")
    run = ["--run", f"{folder}/runs/recipe-001"]
    assert arguments == ["server", "start", str(folder), f"{folder}/recipe.toml", *run]
    assert unit["ReadWritePaths"] == [str(folder)]
    text = (operator.server / "fedmcc-server.service").read_text().split("[Unit]")[1]
    assert "%" not in text.replace("%%", "").replace("MemoryMax=80%", "")


def test_a_service_that_is_stopped_on_purpose_is_not_restarted(operator: OperatorFolder) -> None:
    units = [*operator.path.rglob("*.service")]
    assert len(units) == 3  # server and two sites
    for unit in map(settings, units):
        assert (unit["Restart"], unit["SuccessExitStatus"]) == (["on-failure"], ["130"])


def test_creating_a_federation_refuses_a_folder_in_use_and_changes_nothing(operator: OperatorFolder) -> None:
    before = contents(operator.path)
    with pytest.raises(InputError, match="not empty"):
        create_federation(operator.path, operator.read_spec(), 365)
    assert contents(operator.path) == before


def test_an_added_site_has_a_key_that_the_server_accepts(operator: OperatorFolder) -> None:
    before = contents(operator.path)
    add_site(operator, "west")
    assert operator.read_spec().sites == ("north", "south", "west")
    assert operator.site("west").read() == ("west", "127.0.0.1:8000")
    assert operator.public_key("west").read_bytes().startswith(b"ecdsa-sha2-nistp384 ")
    after = contents(operator.path)
    assert {name for name in before if after[name] != before[name]} == {str(operator.spec_file)}


def test_adding_an_existing_site_is_refused_and_keeps_its_key(operator: OperatorFolder) -> None:
    before = contents(operator.path)
    with pytest.raises(InputError, match="already"):
        add_site(operator, "north")
    assert contents(operator.path) == before


def test_renewing_changes_the_servers_certificate_and_no_site(operator: OperatorFolder) -> None:
    before = contents(operator.path)
    renew_certificate(operator, 700)
    after = contents(operator.path)
    changed = {Path(name) for name in before if after[name] != before[name]}
    assert changed == {operator.certificate, operator.key}
    left = expiry_dates(operator)["the server's certificate"] - datetime.now(UTC)
    assert timedelta(days=699) < left <= timedelta(days=700)


def test_an_expired_certificate_is_refused_with_its_date_and_remedy(operator: OperatorFolder) -> None:
    end = expiry_dates(operator)["the server's certificate"]
    assert expiry_warning(operator, end - timedelta(days=31)) is None
    assert "renew" in (expiry_warning(operator, end - timedelta(days=29)) or "")
    with pytest.raises(InputError, match=f"expired on {end:%Y-%m-%d}.*renew"):
        expiry_warning(operator, end)


@pytest.mark.parametrize(
    ("host", "sites", "named"),
    [
        ("a b", ("north",), "'a b'"),
        ("host", ("../up",), "'../up'"),
        ("host", ("North",), "'North'"),
        ("host", ("a", "a"), "once"),
        ("host", ("",), "''"),
    ],
)
def test_an_invalid_host_or_site_name_is_refused_by_name(
    host: str, sites: tuple[str, ...], named: str
) -> None:
    with pytest.raises(InputError) as refusal:
        FederationSpec(host, 8000, 8001, sites)
    assert named in str(refusal.value)


@pytest.mark.parametrize("days", [0, -1, 4000])
def test_an_invalid_certificate_lifetime_is_refused(tmp_path: Path, days: int) -> None:
    with pytest.raises(InputError, match="--days"):
        create_federation(tmp_path / "new", FederationSpec("host", 8000, 8001, ("a",)), days)
    assert not (tmp_path / "new").exists()


def test_an_ipv6_address_is_written_in_brackets(tmp_path: Path) -> None:
    operator = create_federation(tmp_path / "six", FederationSpec("::1", 8000, 8001, ("a",)), 1)
    assert operator.site("a").read() == ("a", "[::1]:8000")
    assert "listen [::1]:8000 ssl;" in operator.proxy_file.read_text()


def test_a_revoked_site_has_no_key_at_the_server_and_can_be_added_again(operator: OperatorFolder) -> None:
    old = operator.public_key("south").read_bytes()
    revoke_site(operator, "south")
    assert operator.read_spec().sites == ("north",)
    assert not operator.public_key("south").exists()
    assert [path.read_bytes() for path in old_keys(operator, "south")] == [old]
    add_site(operator, "south")
    assert operator.public_key("south").read_bytes() != old
    revoke_site(operator, "south")
    assert [path.name for path in old_keys(operator, "south")] == ["south.1.pub", "south.2.pub"]


def test_a_new_key_replaces_the_old_one_under_the_same_name(operator: OperatorFolder) -> None:
    public, private = operator.public_key("north").read_bytes(), operator.site("north").key.read_bytes()
    rotate_key(operator, "north")
    assert operator.read_spec().sites == ("north", "south")
    assert operator.public_key("north").read_bytes() != public
    assert operator.site("north").key.read_bytes() != private
    assert [path.read_bytes() for path in old_keys(operator, "north")] == [public]


def test_only_sites_of_the_federation_are_revoked_and_never_the_last(operator: OperatorFolder) -> None:
    for act in (revoke_site, rotate_key):
        with pytest.raises(InputError, match=r"Unknown site 'nort'\. Did you mean 'north'"):
            act(operator, "nort")
    revoke_site(operator, "south")
    with pytest.raises(InputError, match="north is the only site"):
        revoke_site(operator, "north")
