"""What any2ds is as a package; the settings of the tools are in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent


def read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def requirements(name: str) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in read(name).splitlines())
    return [line for line in lines if line]


def constant(name: str) -> str:
    """A text of any2ds/core/version.py, read without importing the package, whose libraries may not be there yet."""
    match = re.search(rf'^{name} = "(.+)"$', read("any2ds/core/version.py"), re.MULTILINE)
    if match is None:
        raise RuntimeError(f"any2ds/core/version.py has no {name}")
    return match[1]


EXTRAS = {
    # pillow: the first whose wheels know AVIF; simplejpeg: the first that reads no memory beside an image
    "image": ["opencv-python-headless>=4.9", "pillow>=11.3", "simplejpeg>=1.8.2"],
    "audio": ["av>=16", "numpy"],
    "video": ["av>=16", "numpy", "opencv-python-headless>=4.9", "pillow>=11.3"],
    "text": ["trafilatura>=2.0", "lxml_html_clean>=0.4", "pypdfium2>=4.30", "charset-normalizer>=3.0"],
    "arrayrecord": ["array_record>=0.8; sys_platform != 'win32'"],
    "azure": ["adlfs"],
    "gcs": ["gcsfs"],
    "hdfs": [],  # pyarrow has it; a Hadoop client with its libhdfs must be on the machine
    "hf": ["huggingface_hub"],
    "prometheus": ["prometheus_client>=0.20"],  # the first whose server can be stopped
    "requests": ["requests[socks]>=2.32", "urllib3>=2.6"],
    "s3": ["s3fs"],
    "sftp": ["paramiko>=3.2"],  # the first with channel_timeout
    "smb": ["smbprotocol"],
    "tensorboard": ["tensorboard>=2.16"],
    "tfrecord": ["google-crc32c>=1.5"],
    "wandb": ["wandb>=0.22", "pillow>=11.3"],  # pillow: it wants that for pictures
}
# Each is hundreds of megabytes, and has requirements that others may not go with: not in `all`.
CLUSTERS = {
    "beam": ["apache-beam>=2.60"],
    "ray": ["ray[client]>=2.40"],  # client: ray://
    "spark": ["pyspark>=4.0"],  # and a Java 17 or later
}
# For the contracts and servers in any2ds/testing, besides a test runner.
TESTING = ["cryptography", "dnslib", "gcp-storage-emulator", "h2", "paramiko", "protobuf", "pyftpdlib"]

setup(
    name="any2ds",
    version=constant("__version__"),
    description="Turns huge lists of URLs into sharded datasets",
    long_description=read("README.md"),
    long_description_content_type="text/markdown",
    author="the any2ds authors",
    url=constant("HOMEPAGE"),
    license="MIT",
    license_files=["LICENSE"],
    packages=find_packages(include=["any2ds", "any2ds.*"]),
    package_data={"any2ds": ["py.typed", "__init__.pyi", "dataset/templates/*"]},
    python_requires=">=3.10",
    install_requires=requirements("requirements.txt"),
    extras_require={
        **EXTRAS,
        **CLUSTERS,
        "media": sorted({library for name in ("image", "audio", "video", "text") for library in EXTRAS[name]}),
        "all": sorted({library for libraries in EXTRAS.values() for library in libraries}),
        "testing": TESTING,
    },
    entry_points={"console_scripts": ["any2ds=any2ds.cli:main"]},
    keywords=["dataset", "download", "machine learning", "parquet", "url", "webdataset"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Internet :: WWW/HTTP",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
