# Commands for contributors and for trying Walhook; see CONTRIBUTING.md.

CARGO ?= cargo
# `make demo EVENTS=100` exits after 100 verified deliveries; RATE is the simulated platform's transactions per second.
EVENTS ?=
RATE ?=

# `make soak ROWS=N` queries a delivery log of N rows; the default is ten million. MINUTES is the length of the long run, an hour by
# default, and SEED the seed of its actions.
ROWS ?=
MINUTES ?=
SEED ?=
# Ignored by `make test`, but not a test: another one starts it.
SKIP = --skip hold_a_server_until_killed


# `make test SUITE=capture` runs one suite (several in quotes): unit, api, capture, delivery, operations, reliability,
# tidy, ui.
SUITE ?=

# `make bench MEASURE=drain` runs one measure (several in quotes). OPTIONS=--quick runs all of them briefly, OPTIONS=--assert fails
# if a threshold is missed, OPTIONS=--help lists more.
MEASURE ?=
OPTIONS ?=

# The options of the shipped build.
DIST = --profile dist --features dist --locked

.PHONY: help demo test soak bench deb release check schemathesis screenshots format dependencies test-dependencies package-dependencies

help:
	@echo 'make demo [EVENTS=N] [RATE=N]   run a whole platform on loopback'
	@echo 'make test [SUITE=NAME]          run all tests, or one suite, on a private PostgreSQL'
	@echo 'make soak [ROWS=N] [MINUTES=N]  run all slow tests: every PostgreSQL version, a very large delivery log, an hour of faults'
	@echo 'make bench [MEASURE=NAME]       measure the shipped build, each figure beside its reference'
	@echo 'make deb                        build the Debian package, in target/debian'
	@echo 'make release                    build the files of a release, in target/release-VERSION'
	@echo 'make check                      check formatting, lints, house rules, documentation, licences, advisories'
	@echo 'make schemathesis               test the API against its OpenAPI document (needs Python 3)'
	@echo 'make screenshots                take pictures of every page of the web UI'
	@echo 'make format                     format the sources'

demo:
	@scripts/demo $(if $(EVENTS),--events $(EVENTS)) $(if $(RATE),--rate $(RATE))

test:
	@scripts/test $(SUITE)

# Three builds: the shipped one for the figures of the suite operations, that of `make test` for the suite capture, and one with the shipped
# allocator for the suite reliability, whose long run bounds the growth of memory.
soak: test-dependencies
	scripts/fetch-postgres 14 16 17 18
	scripts/soak-versions
	$(if $(ROWS),WALHOOK_SOAK_ROWS=$(ROWS)) $(CARGO) test $(DIST) --test operations -- --ignored --nocapture --test-threads 1 $(SKIP)
	$(if $(MINUTES),WALHOOK_LONG_RUN_MINUTES=$(MINUTES)) $(if $(SEED),WALHOOK_LONG_RUN_SEED=$(SEED)) \
	    $(CARGO) test --locked --features failpoints,jemalloc --test reliability -- --ignored --nocapture --test-threads 1

bench: package-dependencies
	$(CARGO) build $(DIST) --bin walhook --bin walhook-bench --package walhook --package walhook-bench
	$(CARGO) run $(DIST) --quiet --package walhook-bench -- $(MEASURE) $(OPTIONS)

deb: package-dependencies
	$(CARGO) build $(DIST) --bin walhook
	scripts/package "$${CARGO_TARGET_DIR:-target}/dist/walhook"

release: package-dependencies
	$(CARGO) build $(DIST)
	scripts/release "$${CARGO_TARGET_DIR:-target}/dist"

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets --features failpoints -- -D warnings
	$(CARGO) test --locked --features failpoints --test tidy
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --features failpoints --no-deps --document-private-items
	scripts/licences check
	scripts/audit

schemathesis: dependencies
	@scripts/schemathesis

format:
	$(CARGO) fmt --all

# Takes all pictures in target/screenshots, and copies the three that docs/api.md shows.
screenshots: test-dependencies
	$(CARGO) test --locked --features failpoints --test ui -- --ignored screenshots::
	mkdir -p docs/screenshots
	for name in list-desktop webhook-dark entry-failed-phone; do \
	    cp target/screenshots/$$name.png docs/screenshots/; \
	done

dependencies:
	@scripts/install-dependencies

test-dependencies:
	@scripts/install-dependencies test

package-dependencies:
	@scripts/install-dependencies package
