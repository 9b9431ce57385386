"""What a build receives from the host, from texts as apt, pip and the environment give them."""

from pathlib import Path

import pytest

from dev.localcluster._images.settings import apt_conf, ca_bundle, debian_sources, pip_conf, pip_conf_files

DEBIAN = [
    "http://mirror.test/debian/ bookworm Debian",
    "http://mirror.test/debian/ bookworm-updates Debian",
    "http://mirror.test/debian-security/ bookworm-security Debian",
    "http://mirror.test/debian/ bookworm-backports Debian",
    "http://mirror.test/debian/ bookworm Debian",
    "https://vendor.test/apt stable Vendor",
    "https://vendor.test/without-origin nodistro",
]


def test_the_hosts_debian_mirrors_serve_the_other_release() -> None:
    assert debian_sources(DEBIAN, "trixie") == [
        "deb http://mirror.test/debian/ trixie main",
        "deb http://mirror.test/debian/ trixie-updates main",
        "deb http://mirror.test/debian-security/ trixie-security main",
    ]


@pytest.mark.parametrize("targets", [[], ["http://mirror.test/ubuntu/ noble Ubuntu"]], ids=["no apt", "Ubuntu"])
def test_elsewhere_the_tool_has_its_own_default(targets: list[str]) -> None:
    assert debian_sources(targets, "trixie") == []


@pytest.mark.parametrize(
    ("dump", "with_ca_bundle", "expected"),
    [
        ("", False, ""),
        ('APT "";\nAcquire::Retries "3";\n', False, ""),
        ('Acquire::http::Proxy "http://proxy.test:3128";\n', False, 'Acquire::http::Proxy "http://proxy.test:3128";\n'),
        ('Acquire::http::Proxy "";\n', True, 'Acquire::https::CAInfo "/run/secrets/ca-bundle";\n'),
        (
            'Acquire::https::Proxy::mirror.test "DIRECT";\n',
            False,
            'Acquire::https::Proxy::mirror.test "DIRECT";\n',
        ),
    ],
)
def test_apts_proxies_and_ca_bundle(dump: str, with_ca_bundle: bool, expected: str) -> None:  # noqa: FBT001 - a column of the table
    assert apt_conf(dump, with_ca_bundle=with_ca_bundle) == expected


@pytest.mark.parametrize(
    ("environ", "file", "expected"),
    [
        ({}, "", ""),
        ({}, "[global]\ncert = /etc/ssl/ca.crt\n", ""),
        ({}, "[global]\nindex-url = https://a.test\n", "[global]\nindex-url = https://a.test\n"),
        (
            {"PIP_INDEX_URL": "https://b.test"},
            "[global]\nindex-url = https://a.test\n",
            "[global]\nindex-url = https://b.test\n",
        ),
        ({"UV_DEFAULT_INDEX": "https://c.test"}, "", "[global]\nindex-url = https://c.test\n"),
        (
            {
                "UV_DEFAULT_INDEX": "https://c.test",
                "PIP_INDEX_URL": "https://b.test",
                "PIP_EXTRA_INDEX_URL": "https://d.test",
            },
            "",
            "[global]\nindex-url = https://b.test\nextra-index-url = https://d.test\n",
        ),
        ({"PIP_INDEX_URL": "https://me:50%25@b.test"}, "", "[global]\nindex-url = https://me:50%25@b.test\n"),
    ],
)
def test_the_hosts_package_index(environ: dict[str, str], file: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "pip.conf"
    path.write_text(file)
    assert pip_conf(environ, [tmp_path / "absent.conf", path], with_ca_bundle=False) == expected


def test_pip_gets_the_ca_bundle_inside_the_build() -> None:
    assert pip_conf({}, [], with_ca_bundle=True) == "[global]\ncert = /run/secrets/ca-bundle\n"


def test_the_users_own_pip_conf_is_the_strongest(tmp_path: Path) -> None:
    environ = {"HOME": "/home/me", "PIP_CONFIG_FILE": str(tmp_path / "own.conf")}
    assert pip_conf_files(environ)[-2:] == [Path("/home/me/.config/pip/pip.conf"), tmp_path / "own.conf"]


def test_ca_bundle_from_environment_must_exist(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.crt"
    missing = ca_bundle({"SSL_CERT_FILE": str(bundle)})
    bundle.touch()
    assert missing != bundle
    assert ca_bundle({"SSL_CERT_FILE": str(bundle)}) == bundle
