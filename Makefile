# The front door. CMakeLists.txt is the build; everything here installs what is missing, builds, and runs.

BUILD ?= build
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
PACKAGES := g++ cmake ninja-build pkg-config libopenblas-pthread-dev libhdf5-dev zlib1g-dev libfmt-dev \
            nlohmann-json3-dev libcli11-dev libxxhash-dev libedit-dev doctest-dev

.PHONY: all deps configure demo check test tests-built test-long test-real test-gpu ptxas-report profile profile-kernel lint bench \
        install uninstall clean demo-model help

all: configure
	cmake --build $(BUILD) -j $(JOBS) --target tercet demo_dialogues demo_summary

help:
	@echo "make            build $(BUILD)/tercet"
	@echo "make demo       three training steps on a small model, a conversation and a report (DATA=file.jsonl.gz: your pairs)"
	@echo "make check      quick tests, under 2 minutes once built"
	@echo "make test       all tests but the long ones"
	@echo "make test-long  everything: long tests, sanitizers, fuzzers, mutants"
	@echo "make test-real  OPT's published figures on your copy of its weights: OPT=FOLDER WIKITEXT=wiki.test.raw [WINDOWS=n: a part]"
	@echo "make test-gpu   the tests on this machine's GPU: register layouts, kernels, training, compute-sanitizer, then bench"
	@echo "make ptxas-report   registers, spills and shared memory of each kernel against their budget (UPDATE=1: a new budget)"
	@echo "make profile    a short sft and ppo under Nsight Systems; make profile-kernel K=attention: a kernel under Nsight Compute"
	@echo "make bench      times of single ops on this machine's GPU or CPU"
	@echo "make install    the program, its manual page and bash completion to PREFIX (/usr/local); make uninstall takes them away"
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
	ctest --test-dir $(BUILD) -j $(JOBS) -L check --output-on-failure

test: tests-built
	ctest --test-dir $(BUILD) -j $(JOBS) -L "check|test" --output-on-failure

test-long: tests-built
	ctest --test-dir $(BUILD) -j $(JOBS) --output-on-failure
	bash tests/sanitizers.sh $(JOBS)
	bash tests/fuzz/run.sh $(JOBS) 30
	bash tests/mutants/run.sh $(JOBS)

test-real:
	@[ -n "$(OPT)" ] || { echo "name a Hugging Face folder of OPT-125M or OPT-350M: make test-real OPT=FOLDER" >&2; exit 1; }
	@$(MAKE) --no-print-directory configure
	cmake --build $(BUILD) -j $(JOBS) --target tercet check_real_weights
	@bash tests/real_weights/run.sh $(BUILD) "$(OPT)" "$(WIKITEXT)" $(or $(WINDOWS),0)

# Everything that only a GPU can say. docs/profiling.md tells what to compare with.
test-gpu:
	@bash tools/require.sh gpu nvcc compute-sanitizer
	@$(MAKE) --no-print-directory tests-built
	$(BUILD)/tests/device_probe cuda
	ctest --test-dir $(BUILD) -L gpu --output-on-failure
	$(BUILD)/tercet bench kernels --device cuda --out $(BUILD)/bench-kernels.jsonl
	$(BUILD)/tercet bench step --device cuda --out $(BUILD)/bench-step.jsonl

ptxas-report:
	@bash tools/require.sh nvcc
	@$(MAKE) --no-print-directory configure
	cmake --build $(BUILD) -j $(JOBS) --target tercet_cuda
	@UPDATE=$(UPDATE) bash tools/ptxas_report.sh $(BUILD)

profile:
	@bash tools/require.sh gpu nvcc nsys
	@$(MAKE) --no-print-directory configure
	cmake --build $(BUILD) -j $(JOBS) --target tercet tercet_cuda demo_dialogues
	bash tools/profile.sh $(BUILD)

profile-kernel:
	@[ -n "$(K)" ] || { echo "name an op: make profile-kernel K=attention_forward" >&2; exit 1; }
	@bash tools/require.sh gpu nvcc ncu
	@$(MAKE) --no-print-directory configure
	cmake --build $(BUILD) -j $(JOBS) --target tercet tercet_cuda
	bash tools/profile_kernel.sh $(BUILD) "$(K)"

bench: all
	@if bash tools/require.sh gpu nvcc 2> /dev/null; then cmake --build $(BUILD) -j $(JOBS) --target tercet_cuda; fi
	$(BUILD)/tercet bench kernels

install: all
	@bash tools/install.sh install $(BUILD) $(PREFIX)

uninstall:
	@bash tools/install.sh uninstall $(BUILD) $(PREFIX)

lint: configure
	bash tools/lint.sh $(BUILD)

clean:
	rm -rf $(BUILD) $(BUILD)-configure.log
