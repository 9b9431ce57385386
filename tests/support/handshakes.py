"""TLS handshakes between an agent and the operator, without a network."""

import ssl


def shake_hands(server_context: ssl.SSLContext, authority: str, host: str, *, strict: bool = True) -> None:
    """Perform a handshake as an agent with this authority does. Raises ssl.SSLError where the agent refuses.

    `strict`: as Python 3.13 does by default. It refuses certificates of Helm.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if strict:
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=authority)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname=host)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert client.version() == "TLSv1.3"
