# The front door. CMakeLists.txt is the build; everything here installs what is missing, builds, and runs.

BUILD ?= build
JOBS ?= $(shell nproc)
PACKAGES := g++ cmake ninja-build pkg-config libopenblas-pthread-dev libhdf5-dev zlib1g-dev libfmt-dev \
            nlohmann-json3-dev libcli11-dev libxxhash-dev doctest-dev

.PHONY: all deps configure demo check test tests-built test-long lint bench clean demo-model help

all: configure
	cmake --build $(BUILD) -j $(JOBS) --target tercet demo_dialogues demo_summary

help:
	@echo "make            build $(BUILD)/tercet"
	@echo "make demo       three training steps on a small model, a conversation and a report (DATA=file.jsonl.gz: your pairs)"
	@echo "make check      quick tests, under 2 minutes once built"
	@echo "make test       all tests but the long ones"
	@echo "make test-long  everything: long tests, sanitizers, mutants"
	@echo "make bench      kernels of this machine's CPU"
	@echo "make lint       clang-format and clang-tidy"
	@echo "make demo-model pretrains the small model in weights/ again (half an hour)"

# Installs missing Debian packages as root; otherwise names them and stops.
deps:
	@bash tools/install_packages.sh $(PACKAGES)

configure: deps
	@cmake -S . -B $(BUILD) -G Ninja > $(BUILD)-configure.log 2>&1 || { cat $(BUILD)-configure.log; exit 1; }
	@sed -n 's/^-- \(.*no cuda device\)/\1/p' $(BUILD)-configure.log

demo: all
	@bash examples/demo/run.sh $(BUILD) $(DATA)

demo-model: all
	@bash weights/make_demo_model.sh $(BUILD)

tests-built: configure
	cmake --build $(BUILD) -j $(JOBS)

check: tests-built
	ctest --test-dir $(BUILD) -L check --output-on-failure

test: tests-built
	ctest --test-dir $(BUILD) -L "check|test" --output-on-failure

test-long: tests-built
	ctest --test-dir $(BUILD) --output-on-failure
	bash tests/sanitizers.sh $(JOBS)
	bash tests/mutants/run.sh $(JOBS)

bench: configure
	cmake -S . -B $(BUILD) -DTERCET_BENCH=ON > /dev/null
	cmake --build $(BUILD) -j $(JOBS) --target bench_kernels_cpu
	$(BUILD)/bench_kernels_cpu

lint: configure
	bash tools/lint.sh $(BUILD)

clean:
	rm -rf $(BUILD) $(BUILD)-configure.log
