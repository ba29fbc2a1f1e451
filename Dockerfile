# finetune serve in a container, on a CPU.
#   docker build -t finetune .
#   docker run -p 8000:8000 -v "$PWD/runs/sentiment:/model:ro" finetune
# Train in it with: docker run --entrypoint python … finetune -m finetune nli --model roberta-base …
FROM python:3.12-slim

WORKDIR /opt/finetune
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY finetune finetune
COPY recipes recipes
COPY examples examples
# Options of pip, for instance the index of PyTorch's wheels for the CPU alone, which are smaller:
#   docker build --build-arg PIP_OPTIONS="--extra-index-url URL" -t finetune .
ARG PIP_OPTIONS=""
RUN pip install --no-cache-dir $PIP_OPTIONS -c constraints.txt ".[serve,onnx]"

RUN useradd --create-home finetune
USER finetune
WORKDIR /home/finetune

EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["python", "-m", "finetune"]
CMD ["serve", "/model", "--host", "0.0.0.0"]
