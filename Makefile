# make demo     a slow Node app and Headwall before it, to try out
# make test     everything CI runs
# make check    what the code looks like: fmt, clippy, doc, deny
# make advisories  known holes in dependencies; fetches the RustSec database, so it needs the network
# make release  the binary, with the list of what it was built from in it
# make sbom     that list as CycloneDX JSON, in target/headwall.cdx.json
# make fuzz     what strangers write, at random (libFuzzer): MINUTES=20 for each target, or for TARGET=guard alone
# make differential  STREAMS=100000 streams of requests, as the client means, the proxy writes and Node reads them
# make chaos    what goes wrong around a proxy, row by row: origins, names, disk, clock, signals; two minutes
# make soak     everything at once with an origin that fails, MINUTES=10: what is wrong or left over at the end
# make bench    Headwall beside the app itself, and beside nginx where it is installed
# make docs     writes the pages of docs/ and conf/schema.json anew from the code
# make fmt      formats

.DEFAULT_GOAL := help
.PHONY: help demo test check advisories release sbom fuzz fuzz-tool differential chaos soak bench docs fmt tools deny-tool

PORT ?= 8080
APP_PORT ?= 8081
STREAMS ?= 100000
SEED ?= $(shell date +%s)
CARGO_FUZZ := 0.13.2
export CARGO_TERM_PROGRESS_WHEN ?= auto

SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
# zlib-ng, inside the engine, is built with cmake; nothing else is needed beside Rust, gcc and Node.
install = command -v $(1) >/dev/null || { echo "installing $(2)"; $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq $(2); }

cargo-tool = command -v $(1) >/dev/null || { echo "installing $(1) (some minutes, once)"; cargo install --locked --quiet $(1) --version $(2); }

help:
	@sed -n 's/^# \(make\)/\1/p' Makefile

tools:
	@$(call install,cmake,cmake)
	@$(call install,curl,curl)
	@$(call install,ab,apache2-utils)
	@command -v npm >/dev/null || { echo "Node 20 with npm is needed: https://nodejs.org"; exit 1; }

demo: tools
	@PORT=$(PORT) APP_PORT=$(APP_PORT) examples/demo.sh

test: check
	cargo test --locked --all-targets
	cargo test --locked --doc

check: tools deny-tool
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --quiet
	cargo fetch --locked --quiet
	cargo deny --log-level error --offline check bans licenses sources

advisories: tools deny-tool
	cargo deny --log-level error check advisories

deny-tool:
	@$(call cargo-tool,cargo-deny,^0.18)

release: tools
	@$(call cargo-tool,cargo-auditable,^0.7)
	cargo auditable build --locked --release

sbom:
	@$(call cargo-tool,cargo-cyclonedx,^0.5)
	@cargo cyclonedx --quiet --format json --spec-version 1.5 --override-filename headwall.cdx
	@mkdir -p target && mv headwall.cdx.json target/ && echo target/headwall.cdx.json

fuzz: fuzz-tool
	@fuzz/run.sh $(or $(MINUTES),20) $(TARGET)

fuzz-tool:
	@command -v g++ >/dev/null || { $(call install,g++,g++); }
	@cargo fuzz --version 2>/dev/null | grep -q ' $(CARGO_FUZZ)$$' || { echo "installing cargo-fuzz (some minutes, once)"; cargo install --locked --quiet cargo-fuzz --version =$(CARGO_FUZZ); }

# Another seed each time; the one that shows a fault is told.
differential: tools
	STREAMS=$(STREAMS) SEED=$(SEED) cargo test --locked --test e2e -- --nocapture differential::what_the_client_meant

bench: tools
	cargo build --locked --release
	benches/peers.sh

# Both stand between the process and the C library: one for its clock, one for the names it resolves.
chaos: tools
	@$(call install,faketime,faketime)
	@test -n "$$(ls /usr/lib/*/libnss_wrapper.so /usr/lib/libnss_wrapper.so 2>/dev/null)" || { echo "installing libnss-wrapper"; $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq libnss-wrapper; }
	cargo test --locked --test e2e -- --ignored --nocapture chaos::the_matrix

soak: tools
	cargo build --locked --release
	node benches/soak/soak.js target/release/headwall $(or $(MINUTES),10)

docs: tools
	HEADWALL_WRITE=1 cargo test --locked --test e2e -- --test-threads 1 pages:: documents::the_schema mistakes:: explain::the_transcripts

fmt:
	cargo fmt
