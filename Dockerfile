# Headwall in a container:
#
#   docker build -t headwall .
#   docker run --rm -p 127.0.0.1:8080:8080 -e HEADWALL_TOKEN="$(openssl rand -hex 24)" \
#     -e HEADWALL_UPSTREAM=app.internal:3000 --read-only --cap-drop ALL headwall
#
# Wants BuildKit (Docker 23 or newer, or buildah) for the cache mounts.
# `packaging/try-dockerfile.sh` runs these steps where there is no engine.

FROM rust:1.95-bookworm AS build
# zlib-ng, inside the engine, is built with cmake. Its version is the release's: Debian
# keeps one a release, and a pinned one would stop building with the next security update.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends cmake \
 && rm -rf /var/lib/apt/lists/*
# Writes into the binary what it was built from: `cargo audit bin headwall`, and scanners of
# images, look known holes up by that.
RUN cargo install --locked --quiet cargo-auditable --version 0.7.7
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY .cargo ./.cargo
COPY packaging/notices.sh ./packaging/
COPY src ./src
# The two mounts keep downloaded and compiled dependencies from build to build, so that a
# change in src/ compiles Headwall alone. What a mount holds is not part of the layer,
# hence the copy. Cargo goes by times, which a copied checkout may carry from before the
# last build: the touch makes it look.
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    touch src/main.rs src/lib.rs \
 && cargo auditable build --locked --release \
 && strip -o /headwall target/release/headwall \
 && packaging/notices.sh /NOTICES

# The Debian that the binary was linked on, because libc, libm and libgcc_s are all it
# needs. A distroless base would be some 50 MB smaller, but comes from a registry of its
# own; this one is also the ground of the image above, so there is one source to mirror,
# to pin and to scan. Nothing is run here: the stage adds a binary, its configuration and
# the licences of what is in it, and needs no shell.
FROM debian:bookworm-slim
COPY --from=build /headwall /usr/local/bin/headwall
COPY --from=build /NOTICES /usr/share/doc/headwall/
COPY LICENSE /usr/share/doc/headwall/
COPY conf/docker.yaml /etc/headwall/headwall.yaml
# A number, so that Kubernetes can tell that it is not root (runAsNonRoot). Headwall
# writes no file: a read-only root needs no tmpfs beside it.
USER 65532:65532
EXPOSE 8080
# Drains; `docker stop` waits 10 s, the file gives 8 s.
STOPSIGNAL SIGTERM
# Asks the admin listener, which is reachable from inside alone.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 \
    CMD ["/usr/local/bin/headwall", "health"]
ENTRYPOINT ["/usr/local/bin/headwall"]
CMD ["run", "--config", "/etc/headwall/headwall.yaml"]
