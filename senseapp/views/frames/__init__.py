"""Data frames of results: every chart and table is drawn from one of these. No Streamlit."""
