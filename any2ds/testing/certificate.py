"""Makes the certificates of test servers at run time, so that no key lies in the repository.

It needs the library `cryptography`.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

FLAWS = ("expired", "self-signed", "wrong-host")
"""What can be wrong with a certificate; all are refused by who trusts the authority."""

_DAY = datetime.timedelta(days=1)
_AUTHORITY = "any2ds test authority"


def make_certificate(host: str, folder: Path, flaw: str = "") -> tuple[ssl.SSLContext, str]:
    """A server context with a new certificate for `host` and localhost, and the file of the authority it is from.

    `flaw` is one of `FLAWS`. A self-signed certificate is not from the authority.
    """
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = (
        _certificate(_AUTHORITY, authority_key, _AUTHORITY, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_MAY_SIGN, critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    issuer, issuer_key = (host, key) if flaw == "self-signed" else (_AUTHORITY, authority_key)
    names = [_name("elsewhere.test")] if flaw == "wrong-host" else [_name(host), _name("localhost")]
    certificate = (
        _certificate(host, key, issuer, issuer_key, expired=flaw == "expired")
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    ca_file, server_file = folder / "ca.pem", folder / "server.pem"
    ca_file.write_bytes(authority.public_bytes(pem))
    server_file.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(pem)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server_file)
    return context, str(ca_file)


def _certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    expired: bool = False,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    end = now - _DAY if expired else now + _DAY
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - 2 * _DAY)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


_MAY_SIGN = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
