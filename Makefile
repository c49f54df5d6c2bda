# A thin face over CMake. `make`, `make demo`, `make test`, `make bench`, `make install PREFIX=...`.
BUILD  ?= build
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc)
BUILD_TYPE ?= Release
CMAKE_ARGS ?=

.PHONY: all configure deps test test-cuda demo bench install bundle asan tsan fuzz format check-format check-layers clean

all: configure
	@cmake --build $(BUILD) -j $(JOBS)

configure: deps
	@test -f $(BUILD)/build.ninja || cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=$(BUILD_TYPE) $(CMAKE_ARGS)

deps:
	@scripts/deps build

test:
	@scripts/deps build test
	@$(MAKE) --no-print-directory all
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)
	@scripts/test-python --note

# The same cases on a GPU: fails, not skips, where there is none.
test-cuda:
	@scripts/deps build test
	@test -f build-cuda/build.ninja || cmake -S . -B build-cuda -G Ninja -DCMAKE_BUILD_TYPE=$(BUILD_TYPE) -DBLURRY_CUDA=ON \
		$(CMAKE_ARGS)
	@cmake --build build-cuda -j $(JOBS) --target gpu_tests blurry_cli
	@ctest --test-dir build-cuda -C gpu -L '^gpu$$' --output-on-failure --no-tests=error

# The demo runs on the CPU: its program is built without the CUDA code, which takes nvcc several minutes.
demo:
	@scripts/deps build demo
	@test -f build-demo/build.ninja || cmake -S . -B build-demo -G Ninja -DCMAKE_BUILD_TYPE=$(BUILD_TYPE) \
		-DBLURRY_CUDA=OFF $(CMAKE_ARGS)
	@cmake --build build-demo -j $(JOBS) --target blurry_cli
	@scripts/demo build-demo/blurry

bench: all
	@$(BUILD)/blurry bench op
	@$(BUILD)/blurry bench decode

install: all
	@cmake --install $(BUILD) --prefix $(PREFIX)

# A folder with the program, the GPU's tests and all libraries but CUDA's, for a machine where nothing can be installed.
bundle:
	@scripts/deps build test
	@test -f build-cuda/build.ninja || cmake -S . -B build-cuda -G Ninja -DCMAKE_BUILD_TYPE=$(BUILD_TYPE) $(CMAKE_ARGS)
	@cmake --build build-cuda -j $(JOBS) --target blurry_cli
	@if cmake --build build-cuda --target help | grep -q gpu_tests; then \
		cmake --build build-cuda -j $(JOBS) --target gpu_tests; fi
	@scripts/bundle build-cuda dist/bundle

# Sanitizer builds keep their own folders; `make asan` and `make tsan` build and run all tests there.
asan:
	@$(MAKE) --no-print-directory test BUILD=build-asan BUILD_TYPE=RelWithDebInfo \
		CMAKE_ARGS="-DBLURRY_SANITIZE=address,undefined $(CMAKE_ARGS)"
tsan:
	@$(MAKE) --no-print-directory test BUILD=build-tsan BUILD_TYPE=RelWithDebInfo CMAKE_ARGS="-DBLURRY_SANITIZE=thread"

# libFuzzer on every tests/fuzz/fuzz_*.c, FUZZ_SECONDS each; what it finds is left in build-fuzz.
FUZZ_SECONDS ?= 60
fuzz:
	@scripts/deps build test ci
	@test -f build-fuzz/build.ninja || cmake -S . -B build-fuzz -G Ninja -DCMAKE_C_COMPILER=clang -DBLURRY_FUZZ=ON \
		-DCMAKE_BUILD_TYPE=RelWithDebInfo
	@for source in tests/fuzz/fuzz_*.c; do \
		name=$$(basename $$source .c); subject=$${name#fuzz_}; mkdir -p build-fuzz/corpus-$$subject; \
		cmake --build build-fuzz -j $(JOBS) --target $$name && \
		build-fuzz/$$name -max_len=4096 -max_total_time=$(FUZZ_SECONDS) -timeout=10 -print_final_stats=1 \
			-artifact_prefix=build-fuzz/ -dict=tests/fuzz/$$subject.dict build-fuzz/corpus-$$subject \
			tests/fuzz/corpus/$$subject || exit 1; \
	done

format:
	@git ls-files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format -i
check-format:
	@scripts/deps format
	@git ls-files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format --dry-run --Werror
check-layers:
	@scripts/check-layers

clean:
	@rm -rf $(BUILD) build-demo build-asan build-tsan build-clang build-fuzz
