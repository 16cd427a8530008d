# The quickstart and the tests on Debian 12:
#
#     docker build --tag rlds2reverb .
#     docker run --rm rlds2reverb
#     docker run --rm rlds2reverb bash scripts/test.sh
FROM python:3.11-slim-bookworm
WORKDIR /rlds2reverb
COPY . .
# Makes the environment, and the byte code of what it imports, for all containers.
RUN bash scripts/quickstart.sh --num_episodes=5
CMD ["bash", "scripts/quickstart.sh"]
