# The quickstart and the tests on Debian 12:
#
#     docker build --tag rlds2reverb .
#     docker run --rm rlds2reverb
#     docker run --rm rlds2reverb bash scripts/test.sh
FROM python:3.11-slim-bookworm
WORKDIR /rlds2reverb
COPY . .
RUN bash -c '. scripts/environment.sh'
CMD ["bash", "scripts/quickstart.sh"]
