"""What lies between the network and Streamlit: how the app is served, its headers, and files that come and go."""
