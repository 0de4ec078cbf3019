"""`--proxy` of each kind, with and without a login, for http and https."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from any2ds.core.failures import Failure
from any2ds.core.samples import Payload
from any2ds.testing.server import serve
from tests.support.proxy import Proxy, serve_proxy

LOGIN = "me:p@ss/w:rd"


def wrong(proxy: Proxy, scheme: str) -> str:
    return proxy.url_as(scheme).replace("me:", "me:hunter2")


@pytest.mark.parametrize("login", [None, LOGIN])
@pytest.mark.parametrize("scheme", ["http", "https", "socks5", "socks5h"])
def test_a_proxy_carries_http_and_https(
    scheme: str, login: str | None, one: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_proxy(login, tls=scheme == "https") as proxy, serve(folder) as plain, serve(folder, tls=True) as secure:
        authorities = folder / "authorities.pem"
        pems = [Path(server.ca_file).read_text() for server in (proxy, secure) if server.ca_file]
        authorities.write_text("".join(pems))
        monkeypatch.setenv("SSL_CERT_FILE", str(authorities))
        url = proxy.url_as(scheme)
        host = "127.0.0.1" if scheme == "socks5" else "localhost"  # socks5h: and http: the proxy resolves
        for server, asked in ((plain, f"GET http://{host}:{plain.port}/a.jpg"), (secure, None)):
            kind = "https" if server is secure else "http"
            outcome = one(f"{kind}://{host}:{server.port}/a.jpg", proxy=url)
            assert isinstance(outcome, Payload), outcome
            if scheme.startswith("socks"):
                asked = f"SOCKS {host}:{server.port}"
            assert proxy.asked[-1] == (asked or f"CONNECT {host}:{server.port}")
            assert "Proxy-Authorization" not in server.requests[-1].headers


@pytest.mark.parametrize("scheme", ["http", "socks5h"])
def test_a_wrong_login_is_a_failure_without_the_login(scheme: str, one: Any, folder: Path) -> None:
    with serve_proxy(LOGIN) as proxy, serve(folder) as plain, serve(folder, tls=True) as secure:
        for server in (plain, secure):
            outcome = one(server.url("a.jpg"), proxy=wrong(proxy, scheme))
            assert isinstance(outcome, Failure)
            assert outcome.code in ("http_407", "connect", "access_denied"), outcome
            assert "hunter2" not in repr(outcome)
            assert not server.requests
        assert proxy.refused


def test_a_proxy_that_is_not_there_is_a_failure_to_connect(one: Any) -> None:
    with serve_proxy(LOGIN) as proxy:
        pass
    for scheme in ("http", "socks5h"):
        outcome = one("http://a.test/", proxy=proxy.url_as(scheme))
        assert (outcome.code, "ss%2Fw" in repr(outcome)) == ("connect", False), outcome


def test_the_certificate_of_a_proxy_is_always_verified(one: Any, folder: Path) -> None:
    with serve_proxy(tls=True) as proxy, serve(folder, tls=True) as server:
        outcome = one(server.url("a.jpg"), proxy=proxy.url, ignore_ssl_certificate=True)
        assert outcome.code in ("tls", "connect")
        assert not proxy.asked


def test_the_option_wins_over_the_environment(one: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_proxy() as proxy, serve_proxy() as other, serve(folder) as server:
        monkeypatch.setenv("http_proxy", other.url)
        monkeypatch.setenv("no_proxy", "*")
        assert isinstance(one(server.url("a.jpg"), proxy=proxy.url), Payload)
        assert (len(proxy.asked), other.asked) == (1, [])


def test_headers_for_the_server_do_not_reach_the_proxy_of_a_tunnel(one: Any, folder: Path) -> None:
    with serve_proxy() as proxy, serve(folder, tls=True) as server:
        url = server.url("a.jpg").replace("://", "://you:hunter2@")
        options = {"headers": "X-Key: hunter2, Cookie: session=hunter2", "ignore_ssl_certificate": True}
        assert isinstance(one(url, proxy=proxy.url, **options), Payload)
        assert server.requests[0].headers["Cookie"] == "session=hunter2"
        assert "hunter2" not in "".join(proxy.heads)
        assert "eW91Omh1bnRlcjI=" not in "".join(proxy.heads)


def test_a_proxy_may_be_verified_where_the_server_is_not(
    one: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_proxy(LOGIN, tls=True) as proxy, serve(folder, tls=True) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(proxy.ca_file))
        for ignore in (True, False, True):
            outcome = one(server.url("a.jpg"), proxy=proxy.url, ignore_ssl_certificate=ignore)
            assert isinstance(outcome, Payload) is ignore


METADATA = [
    "http://169.254.169.254/latest",
    "http://[::ffff:a9fe:a9fe]/",
    "http://2852039166/",
    "http://0xa9.0xfea9fe/",
]


@pytest.fixture(params=["option", "environment", "socks5h"])
def behind(request: pytest.FixtureRequest, one: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Fetches one URL through a proxy, of the option or of the environment."""

    def fetch_behind(proxy: Proxy, url: str, **options: Any) -> Any:
        if request.param == "environment":
            monkeypatch.setenv("http_proxy", proxy.url)
            monkeypatch.setenv("no_proxy", "")
            return one(url, **options)
        return one(url, proxy=proxy.url_as("http" if request.param == "option" else request.param), **options)

    return fetch_behind


def test_a_proxy_is_not_asked_for_a_metadata_service(behind: Any, folder: Path) -> None:
    scripts = {f"to{n}.jpg": [f"redirect:{url}"] for n, url in enumerate(METADATA)}
    with serve_proxy() as proxy, serve(folder, scripts) as server:
        proxy.ports[80] = server.port  # where it would find a body
        for url in [*METADATA, *map(server.url, scripts)]:
            assert (url, behind(proxy, url).code) == (url, "blocked_address")
        assert len(proxy.asked) == len(METADATA)
        assert all("127.0.0.1" in asked for asked in proxy.asked)


def test_leave_for_link_local_addresses_holds_behind_a_proxy(behind: Any, folder: Path) -> None:
    with serve_proxy() as proxy, serve(folder) as server:
        proxy.ports[80] = server.port
        assert isinstance(behind(proxy, "http://169.254.169.254/a.jpg", allow_link_local=True), Payload)


def test_private_addresses_are_refused_behind_a_proxy_and_others_are_not(behind: Any, folder: Path) -> None:
    with serve_proxy() as proxy, serve(folder) as server:
        proxy.ports[80] = server.port
        assert behind(proxy, server.url("a.jpg"), block_private_addresses=True).code == "blocked_address"
        assert not proxy.asked
        for host in ("media.example", "192.0.1.1"):  # the address of the proxy, 127.0.0.1, does not matter
            assert isinstance(behind(proxy, f"http://{host}/a.jpg", block_private_addresses=True), Payload)
        assert [request.path for request in server.requests if request.path != "robots.txt"] == ["a.jpg"] * 2


def test_a_public_host_behind_a_proxy_does_not_redirect_to_a_private_address(behind: Any, folder: Path) -> None:
    with serve_proxy() as proxy, serve(folder, {"to.jpg": ["redirect:http://10.0.0.1/a.jpg"] * 2}) as server:
        proxy.ports[80] = server.port
        for host in ("media.example", "192.0.1.1"):
            assert behind(proxy, f"http://{host}/to.jpg").code == "blocked_address"


@pytest.mark.parametrize("excluded", ["*", "127.0.0.1,localhost", "other.test, 127.0.0.0/8,localhost"])
def test_what_the_environment_excludes_from_its_proxy_is_judged_when_it_is_connected_to(
    one: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, excluded: str
) -> None:
    with serve_proxy() as proxy, serve(folder) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", excluded)
        assert isinstance(one(server.url("a.jpg")), Payload)
        for host in ("127.0.0.1", "localhost"):
            outcome = one(f"http://{host}:{server.port}/a.jpg", block_private_addresses=True)
            assert outcome.code == "blocked_address"
        assert not proxy.asked
        assert len(server.requests) == 1


def test_proxies_of_the_environment_differ_by_scheme_and_their_own_addresses_are_not_judged(
    one: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        plain, secure = (stack.enter_context(serve_proxy()) for _ in range(2))
        target = stack.enter_context(serve(folder, tls=True))
        scripts = {"to.jpg": [f"redirect:https://media.example:{target.port}/a.jpg"]}
        server = stack.enter_context(serve(folder, scripts))
        plain.ports[80] = server.port
        monkeypatch.setenv("http_proxy", plain.url)
        monkeypatch.setenv("HTTPS_PROXY", secure.url)
        options = {"block_private_addresses": True, "ignore_ssl_certificate": True}
        assert isinstance(one("http://public.example/to.jpg", **options), Payload)
        assert (plain.asked[-1], secure.asked) == (
            "GET http://public.example/to.jpg",
            [f"CONNECT media.example:{target.port}"],
        )


@pytest.mark.parametrize("name", ["all_proxy", "ALL_PROXY"])
def test_a_redirect_from_a_host_without_a_proxy_to_one_behind_it_and_back(
    one: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with serve_proxy() as proxy, serve(folder) as server:
        proxy.ports[80] = server.port
        scripts = {"out.jpg": ["redirect:http://public.example/a.jpg"]}
        with serve(folder, scripts) as first:
            monkeypatch.setenv(name, proxy.url)
            monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
            assert isinstance(one(first.url("out.jpg")), Payload)
            assert proxy.asked[-1] == "GET http://public.example/a.jpg"
    with ExitStack() as stack:
        proxy, private = stack.enter_context(serve_proxy()), stack.enter_context(serve(folder))
        server = stack.enter_context(serve(folder, {"in.jpg": [f"redirect:{private.url('a.jpg')}"]}))
        proxy.ports[80] = server.port
        monkeypatch.setenv(name, proxy.url)
        outcome = one("http://public.example/in.jpg")
        assert isinstance(outcome, Failure)
        assert outcome.code == "blocked_address"  # a public host does not lead into this network
        assert not private.requests
