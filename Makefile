# What a developer types. `make test` is what CI runs.
export PATH := $(HOME)/.cargo/bin:$(PATH)
.DEFAULT_GOAL := help

.PHONY: help
help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

.PHONY: demo
demo:  ## from a fresh machine to a guest that uses a drive
	@scripts/demo.sh

.PHONY: setup
setup:  ## install what building and testing need
	@scripts/setup.sh

.PHONY: build
build: setup  ## the binaries, target/release/sluice, sluice-holder and sluice-bench
	cargo build --release --bin sluice --bin sluice-holder --bin sluice-bench

.PHONY: deb
deb:  ## the Debian packages, in target/deb; make deb ARCH=arm64 for that architecture
	@scripts/setup.sh package $(ARCH)
	@scripts/deb.py $(if $(ARCH),--arch $(ARCH))

.PHONY: package-test
package-test: setup  ## check the packages, and install them in a fresh Debian, in a guest
	@scripts/package.sh

.PHONY: package-test-arm64
package-test-arm64: setup  ## the same for arm64, with an emulated machine
	@scripts/package-arm64.sh

.PHONY: test
test:  ## all that CI runs
	@scripts/test.sh

.PHONY: guest-test
guest-test: build  ## the guest tests alone; make guest-test ARGS=--full for the long ones
	@python3 tests/guest/all.py $(ARGS)

.PHONY: mutants
mutants: setup  ## change code at random, report changes that no test notices; SEED=, SAMPLE=
	@SEED=$(SEED) SAMPLE=$(SAMPLE) scripts/mutants.sh

.PHONY: bench
bench: setup  ## measure speed: sluice bench, with arguments in ARGS
	cargo build --profile dist --bin sluice --bin sluice-bench
	target/dist/sluice bench $(ARGS)

.PHONY: clean
clean:  ## remove what was built here
	cargo clean

.PHONY: clean-cache
clean-cache:  ## remove the fetched QEMU and guests too
	rm -rf "$${SLUICE_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/sluice}"
