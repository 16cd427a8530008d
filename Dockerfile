# The quickstart, the tests and the programs on Debian 12; see docs/docker.md:
#
#     docker build --tag rlds2reverb .
#     docker run --rm rlds2reverb
#     docker run --rm rlds2reverb bash scripts/test.sh
FROM python:3.11-slim-bookworm
WORKDIR /rlds2reverb
COPY . .
# Makes the environment, and the byte code of what it imports, for all containers.
RUN bash scripts/quickstart.sh --num_episodes=5
ENV PATH=/rlds2reverb/.venv/bin:$PATH
CMD ["bash", "scripts/quickstart.sh"]
