"""The web server: Streamlit as an ASGI application, with headers, guards, uploads to disk and downloads from it."""
