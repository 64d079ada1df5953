"""What things are called on screen, numbers in text, sentences. No Streamlit."""
