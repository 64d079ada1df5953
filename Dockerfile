# docker build -t senseapp . && docker run -p 8501:8501 -v senseapp:/var/lib/senseapp senseapp
# Behind a proxy, with login, and all settings: docs/deploy.md
FROM python:3.11-slim

RUN useradd --system --create-home --uid 10001 senseapp \
    && install -d -o senseapp -g senseapp /var/lib/senseapp
WORKDIR /app

# Wheels of torch without CUDA, gigabytes smaller; for an NVIDIA GPU: --build-arg TORCH_INDEX=https://pypi.org/simple
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY requirements.txt constraints.txt ./
RUN pip install --no-cache-dir --disable-pip-version-check \
    --requirement requirements.txt --constraint constraints.txt --extra-index-url "$TORCH_INDEX"

COPY .streamlit .streamlit
COPY assets assets
COPY senseapp senseapp
COPY pages pages
COPY app.py ./

# Everything that is written lies in the volume: the container itself may be read-only.
ENV SENSEAPP_HOME=/var/lib/senseapp \
    XDG_CACHE_HOME=/var/lib/senseapp/cache \
    HF_HOME=/var/lib/senseapp/cache/huggingface \
    TORCH_HOME=/var/lib/senseapp/cache/torch \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    MALLOC_ARENA_MAX=1
VOLUME /var/lib/senseapp
USER senseapp
EXPOSE 8501
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://localhost:8501/_stcore/health', timeout=4)"]
CMD ["python", "-m", "senseapp.app.server.serve", "--server.address=0.0.0.0", "--server.port=8501"]
