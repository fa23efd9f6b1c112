# Two images of one tree: `web` serves pages and prepares the database, `runner` has what jobs run with.
# Build: docker compose build
FROM python:3.11-slim-bookworm AS web

# The client tools have the version of the PostgreSQL server: pg_dump refuses a newer server, and a newer pg_dump's
# backup may not go back into an older one. Versions that Debian lacks come from PostgreSQL's own packages.
ARG POSTGRES_MAJOR=16
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates postgresql-common \
 && { apt-cache show "postgresql-client-${POSTGRES_MAJOR}" >/dev/null 2>&1 \
      || /usr/share/postgresql-common/pgdg/apt.postgresql.org.sh -y; } \
 && apt-get install --yes --no-install-recommends "postgresql-client-${POSTGRES_MAJOR}" \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 10001 berth \
 && install -d -o berth -g berth /srv/berth /opt/berth

WORKDIR /opt/berth
COPY requirements/base.txt requirements/base.txt
RUN pip install --no-cache-dir --require-hashes --requirement requirements/base.txt
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

FROM web AS runner
USER root
# bubblewrap: the sandbox of jobs.  gcc and git: packages without a wheel, torch.compile, code from repositories.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends bubblewrap g++ gcc git libc6-dev \
 && rm -rf /var/lib/apt/lists/* \
 && pip install --no-cache-dir "torch>=2.10,<2.14"
USER berth
