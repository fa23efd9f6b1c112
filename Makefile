# Everything is done by make.py, which needs only Python 3.11 and its standard library.
PYTHON ?= python3

.PHONY: demo up down test bench lock
demo: ; @$(PYTHON) make.py demo $(if $(filter 1,$(ONCE)),--once)
up: ; @$(PYTHON) make.py up
down: ; @$(PYTHON) make.py down
test: ; @$(PYTHON) make.py test $(if $(TESTS),-- $(TESTS))
bench: ; @$(PYTHON) make.py bench $(if $(NAME),--name $(NAME))
lock: ; @$(PYTHON) make.py lock
