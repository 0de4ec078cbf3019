# docker build -t any2ds . && docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/data" any2ds urls.txt dataset
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml setup.py requirements.txt README.md LICENSE MANIFEST.in ./
COPY any2ds ./any2ds
ARG EXTRAS=https,media,s3,gcs,yaml
RUN python -m venv /opt/any2ds \
    && /opt/any2ds/bin/pip install --no-cache-dir --disable-pip-version-check ".[${EXTRAS}]"

FROM python:3.13-slim
LABEL org.opencontainers.image.title="any2ds" \
      org.opencontainers.image.source="https://github.com/any2ds/any2ds" \
      org.opencontainers.image.licenses="MIT"
COPY --from=build /opt/any2ds /opt/any2ds
RUN useradd --create-home --uid 1000 any2ds && mkdir /data && chown any2ds:any2ds /data
ENV PATH=/opt/any2ds/bin:$PATH PYTHONUNBUFFERED=1
USER 1000
WORKDIR /data
ENTRYPOINT ["any2ds"]
CMD ["--help"]
