"""The web server: Streamlit as an ASGI application, uploads to disk, headers."""
