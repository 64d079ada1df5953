"""What pages, reports and commands show: frames, charts, words and the report; no Streamlit."""
