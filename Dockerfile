# The server and what its jobs run with.  Build: docker compose build
FROM python:3.11-slim-bookworm

# bubblewrap: the sandbox of jobs.  postgresql-client: backup and restore.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends bubblewrap postgresql-client \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 10001 berth \
 && install -d -o berth -g berth /srv/berth /opt/berth

WORKDIR /opt/berth
COPY requirements/base.txt requirements/base.txt
RUN pip install --no-cache-dir --require-hashes --requirement requirements/base.txt \
 && pip install --no-cache-dir "torch>=2.10,<2.14"
COPY manage.py ./
COPY berth berth
COPY orchestrator orchestrator
COPY dashboard dashboard
COPY training training
COPY templates templates
COPY static static
COPY examples examples
ENV PYTHONPATH=/opt/berth PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 BERTH_HOME=/srv/berth BERTH_BIND=0.0.0.0
USER berth
VOLUME /srv/berth
ENTRYPOINT ["python", "manage.py"]
