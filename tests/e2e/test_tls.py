"""TLS between a real Envoy and porteiro, both showing certificates; new certificates under load."""

import os
import ssl
import subprocess
import threading
import urllib.error
import urllib.request

import pytest

from support.authority import Authority
from support.child import Child
from support.envoy import replaced_once
from support.porteiro import binary
from support.ports import free_port
from support.wait import until

RULES = "domain: edge\ndescriptors:\n- key: remote_address\n  rate_limit: {unit: day, requests_per_unit: 2}\n"


@pytest.fixture(scope="module")
def authority(folder):
    return Authority(folder, "authority")


@pytest.fixture(scope="module")
def secured(serve, folder, authority):
    """porteiro with the reference's variables: TLS, and clients of one name only."""
    rules = folder / "rules.yaml"
    rules.write_text(RULES)
    certificate, key = authority.sign("server", "DNS:porteiro.test")
    return serve(
        rules,
        env={
            "GRPC_SERVER_USE_TLS": "true",
            "GRPC_SERVER_TLS_CERT": str(certificate),
            "GRPC_SERVER_TLS_KEY": str(key),
            "GRPC_CLIENT_TLS_CACERT": str(authority.certificate),
            "GRPC_CLIENT_TLS_SAN": "envoy.test",
        },
    )


def upstream_tls(authority, pair):
    """Puts TLS on Envoy's cluster of porteiro."""
    certificate, key = pair
    block = f"""    connect_timeout: 0.25s
    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        sni: porteiro.test
        common_tls_context:
          tls_certificates:
          - certificate_chain: {{filename: "{certificate}"}}
            private_key: {{filename: "{key}"}}
          validation_context:
            trusted_ca: {{filename: "{authority.certificate}"}}
            match_typed_subject_alt_names:
            - san_type: DNS
              matcher: {{exact: porteiro.test}}
    typed_extension_protocol_options:           # gRPC needs HTTP/2
"""
    old = "    connect_timeout: 0.25s\n    typed_extension_protocol_options:           # gRPC needs HTTP/2\n"
    return lambda text: replaced_once(
        replaced_once(text, old, block), "failure_mode_deny: false", "failure_mode_deny: true"
    )


def test_an_envoy_with_the_right_certificate_asks_and_others_do_not(secured, proxy, authority):
    envoy = proxy(secured.grpc_port, upstream_tls(authority, authority.sign("envoy", "DNS:envoy.test")))
    assert [envoy.ask("/").status for _ in range(3)] == [200, 200, 429]
    stranger = proxy(secured.grpc_port, upstream_tls(authority, authority.sign("other", "DNS:other.test")))
    assert stranger.ask("/").status == 503
    # HTTP stays as it was: probes go on.
    assert urllib.request.urlopen(f"http://127.0.0.1:{secured.http_port}/readyz").status == 200


def mounted(folder, version, certificate, key):
    """Lays a certificate out as the kubelet lays out a Secret: `..data` leads to a folder of the
    version and is replaced as one."""
    place = folder / f"..{version}"
    place.mkdir(parents=True)
    for source, name in ((certificate, "tls.crt"), (key, "tls.key")):
        (place / name).write_bytes(source.read_bytes())
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    (folder / "..tmp").symlink_to(place.name)
    os.replace(folder / "..tmp", folder / "..data")


def test_certificates_rotate_under_load(serve, proxy, folder, authority):
    mount, rules = folder / "mount", folder / "rotated.yaml"
    rules.write_text(RULES)
    mounted(mount, 0, *authority.sign("first", "DNS:porteiro.test"))
    env = {
        "GRPC_SERVER_USE_TLS": "true",
        "GRPC_SERVER_TLS_CERT": str(mount / "tls.crt"),
        "GRPC_SERVER_TLS_KEY": str(mount / "tls.key"),
    }
    # Connections come and go, so that each certificate is used.
    porteiro = serve(rules, flags=("--max-connection-age", "500ms"), env=env)
    envoy = proxy(porteiro.grpc_port, upstream_tls(authority, authority.sign("envoy2", "DNS:envoy.test")))
    statuses, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            statuses.append(envoy.ask("/").status)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    reloads = "porteiro_tls_certificate_reloads_total"
    before = porteiro.metric(reloads)
    for version in range(1, 4):
        certificate, key = authority.sign(f"next-{version}", "DNS:porteiro.test")
        mounted(mount, version, certificate, key)
        until(lambda: porteiro.metric(reloads) >= before + version, "the new certificate")
        asked = len(statuses)
        until(lambda: len(statuses) > asked + 50, "calls under it")
    stop.set()
    for thread in threads:
        thread.join()
    # Two pass, then all are over the limit, and nothing else: a failed call would be 503.
    assert set(statuses[8:]) == {429}, {status: statuses.count(status) for status in set(statuses)}
    assert porteiro.metric("porteiro_tls_certificate_reloads_refused_total") == 0
    new = ssl.PEM_cert_to_DER_cert((mount / "tls.crt").read_text())
    assert shown(porteiro.grpc_port, authority) == new


def shown(port, authority):
    """The certificate that porteiro shows; a client without one of its own gets that far."""
    script = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-CAfile", str(authority.certificate)]
    output = subprocess.run(script, input="", capture_output=True, text=True, timeout=20, check=False).stdout
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return ssl.PEM_cert_to_DER_cert(output[output.index(begin) : output.index(end) + len(end)])


def answered(port, authority, pair=None, path="/rules", headers=None):
    """The status of a GET over TLS, with a certificate to show or without; None when the handshake
    comes to nothing."""
    context = ssl.create_default_context(cafile=authority.certificate)
    if pair:
        context.load_cert_chain(*pair)
    request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", headers=headers or {})
    try:
        return urllib.request.urlopen(request, context=context, timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def test_admin_beyond_loopback_wants_a_certificate_or_a_token(folder, authority, started):
    rules, token = folder / "rules.yaml", folder / "token"
    rules.write_text(RULES)
    token.write_text("a-token-of-the-tests\n")
    certificate, key = authority.sign("admin", "IP:127.0.0.1")
    tls = ("--tls-cert", certificate, "--tls-key", key, "--tls-on", "admin")

    def everywhere(name, *flags):
        """porteiro with its admin listener on every address."""
        port = free_port()
        words = ["--config", rules, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        words += ["--admin", f"0.0.0.0:{port}", *flags]
        child = Child([binary(), "serve", *words], folder / f"admin-{name}.log")
        started.append(child)
        return child, port

    open_to_all, _ = everywhere("open", *tls)
    assert open_to_all.wait() == 64
    assert "--admin-token-file" in open_to_all.output()

    mutual, port = everywhere("mutual", *tls, "--tls-client-ca", authority.certificate)
    mutual.until_logged(" listening ")
    operator = authority.sign("operator", "DNS:operator.test")
    assert answered(port, authority, operator) == 200
    assert answered(port, authority) is None
    stranger = Authority(folder, "elsewhere").sign("stranger", "DNS:operator.test")
    assert answered(port, authority, stranger) is None

    bearer, port = everywhere("bearer", *tls, "--admin-token-file", token)
    bearer.until_logged(" listening ")
    for given, status in (
        ({"authorization": "Bearer a-token-of-the-tests"}, 200),
        ({"authorization": "Bearer a-token-of-the-testsx"}, 401),
        ({}, 401),
    ):
        assert answered(port, authority, headers=given) == status
    assert answered(port, authority, path="/readyz") == 200
    for child in (mutual, bearer):
        assert "a-token-of-the-tests" not in child.output()
        assert child.stop() == 0
