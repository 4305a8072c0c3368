"""TLS between a real Envoy and porteiro, both showing certificates; new certificates under load."""

import os
import ssl
import subprocess
import threading
import urllib.request

import pytest

from support.authority import Authority
from support.envoy import replaced_once
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


def test_certificates_rotate_under_load(secured, proxy, authority):
    envoy = proxy(secured.grpc_port, upstream_tls(authority, authority.sign("envoy2", "DNS:envoy.test")))
    statuses, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            statuses.append(envoy.ask("/").status)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    reloads = "porteiro_tls_certificate_reloads_total"
    before = secured.metric(reloads)
    for round in range(3):
        certificate, key = authority.sign(f"next-{round}", "DNS:porteiro.test")
        os.replace(certificate, authority.folder / "server.crt")
        os.replace(key, authority.folder / "server.key")
        until(lambda: secured.metric(reloads) > before + round, "the new certificate")
    stop.set()
    for thread in threads:
        thread.join()
    # Over the limit all of them, and nothing else: a failed call would be 503.
    assert set(statuses) == {429}, {status: statuses.count(status) for status in set(statuses)}
    new = ssl.PEM_cert_to_DER_cert((authority.folder / "server.crt").read_text())
    assert shown(secured.grpc_port, authority) == new


def shown(port, authority):
    """The certificate that porteiro shows; a client without one of its own gets that far."""
    script = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-CAfile", str(authority.certificate)]
    output = subprocess.run(script, input="", capture_output=True, text=True, timeout=20, check=False).stdout
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return ssl.PEM_cert_to_DER_cert(output[output.index(begin) : output.index(end) + len(end)])
