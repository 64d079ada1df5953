# docker build -t senseapp . && docker run -p 8501:8501 -v senseapp:/var/lib/senseapp senseapp
FROM python:3.11-slim

RUN useradd --system --create-home --uid 10001 senseapp \
    && install -d -o senseapp -g senseapp /var/lib/senseapp
WORKDIR /app

COPY requirements.txt constraints.txt ./
RUN pip install --no-cache-dir --disable-pip-version-check -r requirements.txt -c constraints.txt

COPY .streamlit .streamlit
COPY assets assets
COPY senseapp senseapp
COPY pages pages
COPY app.py ./

ENV SENSEAPP_HOME=/var/lib/senseapp \
    PYTHONUNBUFFERED=1
VOLUME /var/lib/senseapp
USER senseapp
EXPOSE 8501
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://localhost:8501/_stcore/health', timeout=4)"]
CMD ["python", "-m", "senseapp.ui.serve", "--server.address=0.0.0.0", "--server.port=8501"]
