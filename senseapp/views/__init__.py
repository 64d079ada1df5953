"""Contents of pages, reports and commands: frames, charts, words and the report; no Streamlit."""
