# Everything is done by make.py, which needs only Python 3.11 and its standard library. Each PYTHON has its own environment.
PYTHON ?= python3

.PHONY: demo up down docs check test ci mutants pythons trainers bench gpu dist release-check screens film chaos install-service lab containers torch lock
demo: ; @$(PYTHON) make.py demo $(if $(filter 1,$(ONCE)),--once)
up: ; @$(PYTHON) make.py up
down: ; @$(PYTHON) make.py down
docs: ; @$(PYTHON) make.py docs
check: ; @$(PYTHON) make.py check
test: ; @$(PYTHON) make.py test $(if $(TESTS),-- $(TESTS))
ci: ; @.ci/run
mutants: ; @$(PYTHON) make.py mutants -- $(ROOM) $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED))
pythons: ; @$(PYTHON) -m tests.pythons $(if $(filter 1,$(PARTS)),--parts) $(if $(RUN_AS),--user $(RUN_AS))
trainers: ; @$(PYTHON) make.py trainers $(if $(HOME_FOLDER),--home $(HOME_FOLDER)) -- $(NAMES)
bench: ; @$(PYTHON) make.py bench $(if $(NAME),--name $(NAME))
gpu: ; @$(PYTHON) make.py gpu $(if $(filter 1,$(DRY_RUN)),--dry-run) -- $(PARTS)
dist: ; @$(PYTHON) make.py dist
release-check: ; @$(PYTHON) make.py release-check
screens: ; @$(PYTHON) make.py screens
film: ; @$(PYTHON) make.py film
chaos: ; @$(PYTHON) make.py chaos --faults $(or $(N),100) --seed $(or $(SEED),1) --engine $(or $(ENGINE),local)
install-service: ; @$(PYTHON) make.py install-service $(if $(RUN_AS),--run-as $(RUN_AS))
lab: ; @$(PYTHON) make.py lab
containers: ; @$(PYTHON) make.py containers
torch: ; @$(PYTHON) make.py torch
lock: ; @$(PYTHON) make.py lock
