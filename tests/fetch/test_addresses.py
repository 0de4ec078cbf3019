"""Which addresses are public, which are private, and which are those of metadata services, however they are hidden."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from any2ds.fetch.policy.addresses import address_kind

METADATA = (
    "169.254.169.254",
    "169.254.170.2",
    "168.63.129.16",
    "100.100.100.200",
    "100.96.0.96",
    "100.80.80.80",
    "192.0.0.192",
    "fe80::a9fe:a9fe",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd20:ce::254",
    "fd00:c1::a9fe:a9fe",
    "fd00:100::100:200",
    "fd00:a9fe:a9fe::1",
    "fd00:42::42",
)
PRIVATE = (
    "0.0.0.0",
    "10.0.0.5",
    "100.64.0.1",
    "127.0.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.168.1.1",
    "198.19.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "100::1",
    "2001:2::1",
    "2001:db8::1",
    "3fff::1",
    "5f00::1",
    "4000::1",
    "fc00::1",
    "fd12:3456::1",
    "fec0::1",
    "ff02::1",
)
PUBLIC = (
    "8.8.8.8",
    "93.184.216.34",
    "100.63.255.255",
    "100.128.0.0",
    "172.32.0.1",
    "192.0.0.9",
    "192.31.196.1",
    "2001:4860:4860::8888",
    "2001:4:112::1",
    "2001:20::1",
    "2620:4f:8000::1",
    "2a00:1450:4001::1",
)
HIDDEN = (  # each holds 169.254.169.254, 10.0.0.5 or 8.8.8.8
    ("::ffff:169.254.169.254", "metadata"),
    ("::ffff:10.0.0.5", "private"),
    ("::ffff:8.8.8.8", "public"),
    ("::ffff:0:169.254.169.254", "metadata"),
    ("::169.254.169.254", "metadata"),
    ("::10.0.0.5", "private"),
    ("64:ff9b::a9fe:a9fe", "metadata"),
    ("64:ff9b::10.0.0.5", "private"),
    ("64:ff9b::8.8.8.8", "public"),
    ("64:ff9b:1::169.254.169.254", "metadata"),  # a prefix of 96 bits
    ("64:ff9b:1:a9fe:00a9:fe00::", "metadata"),  # of 48
    ("64:ff9b:1:00a9:00fe:a9fe::", "metadata"),  # of 56
    ("64:ff9b:1:0:00a9:fea9:fe00::", "metadata"),  # of 64
    ("64:ff9b:1::8.8.8.8", "private"),
    ("2002:a9fe:a9fe::1", "metadata"),
    ("2002:0a00:0005::", "private"),
    ("2002:0808:0808::1", "public"),
    ("2001:0:a9fe:a9fe::", "metadata"),  # the server of Teredo
    ("2001:0:808:808:0:0:5601:5601", "metadata"),  # its client
    ("2001:0:808:808:0:0:f7f7:f7f7", "private"),
    ("2a00:1450:4001::5efe:169.254.169.254", "metadata"),
    ("2a00:1450:4001::200:5efe:10.0.0.5", "private"),
)


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        *((address, "metadata") for address in METADATA),
        *((address, "private") for address in PRIVATE),
        *((address, "public") for address in PUBLIC),
        *HIDDEN,
    ],
)
def test_an_address_is_as_dangerous_as_what_it_leads_to(address: str, kind: str) -> None:
    assert address_kind(address) == kind


def test_what_is_no_address_has_no_kind() -> None:
    with pytest.raises(ValueError, match="localhost"):
        address_kind("localhost")


# On a machine of its own, whose loopback has all these addresses, each of which would answer.
RUN = """
import ctypes, fcntl, http.server, json, os, socket, struct, sys, threading
folder, addresses, options_by_name = sys.argv[1], sys.argv[2].split(), json.loads(sys.argv[3])
libc = ctypes.CDLL(None, use_errno=True)
NEW_NETWORK, NEW_USER = 0x40000000, 0x10000000
is_alone = libc.unshare(NEW_NETWORK) == 0 or libc.unshare(NEW_NETWORK | NEW_USER) == 0
asked = []
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked.append(self.headers["Host"])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"secret")
    def log_message(self, *_): pass
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
port = 80
if is_alone:
    six, four = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    fcntl.ioctl(four, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS: up
    for number, address in enumerate(addresses):
        if ":" in address:
            fcntl.ioctl(six, 0x8916, struct.pack("16sIi", socket.inet_pton(socket.AF_INET6, address), 128, 1))
        else:
            packed = struct.pack("16sHH4s8x", b"lo:%d" % number, socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(four, 0x8916, packed)  # SIOCSIFADDR
    server = Server(("::", 0), Handler)
    port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
import any2ds
import pyarrow.parquet as pq
rows = [f"http://[{address}]:{port}/a" if ":" in address else f"http://{address}:{port}/a" for address in addresses]
found = {}
for name, options in options_by_name.items():
    out = f"{folder}/{name}"
    any2ds.download(rows, out, distributor="inline", quiet=True, timeout=5, **options)
    table = pq.read_table(f"{out}/00000.parquet").to_pylist()
    found[name] = [row["error_code"] or row["status"] for row in table]
print(json.dumps({"is_alone": is_alone, "codes": found, "asked": len(asked)}))
os._exit(0)
"""


def outcomes(tmp_path: Path, addresses: list[str], options: dict[str, dict[str, bool]]) -> dict[str, list[str]]:
    """The codes of rows at these addresses, by options. Nothing may have been asked of any."""
    command = [sys.executable, "-c", RUN, str(tmp_path), " ".join(addresses), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["asked"] == 0
    codes: dict[str, list[str]] = found["codes"]
    return codes


def test_no_run_asks_a_metadata_service_by_any_of_its_addresses(tmp_path: Path) -> None:
    addresses = [address for address in METADATA if "%" not in address and not address.startswith("fe80:")]
    hidden = [address for address, kind in HIDDEN if kind == "metadata" and not address.startswith(("::", "2001:0:"))]
    codes = outcomes(tmp_path, [*addresses, *hidden], {"default": {}})
    for name, found in codes.items():
        assert found == ["blocked_address"] * (len(addresses) + len(hidden)), name


def test_private_addresses_are_refused_however_they_are_hidden(tmp_path: Path) -> None:
    addresses = ["10.0.0.5", "fd12:3456::1", "fec0::1", "64:ff9b::10.0.0.5", "2002:0a00:0005::"]
    codes = outcomes(tmp_path, addresses, {"block": {"block_private_addresses": True}})
    for name, found in codes.items():
        assert found == ["blocked_address"] * len(addresses), name
