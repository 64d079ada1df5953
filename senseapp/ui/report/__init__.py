"""A run as one self-contained HTML file. Nothing here knows Streamlit, so the command line makes reports too."""
