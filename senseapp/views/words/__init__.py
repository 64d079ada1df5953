"""Words for pages, reports and commands: names, numbers in text, sentences. No Streamlit."""
