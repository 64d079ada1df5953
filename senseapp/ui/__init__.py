"""The face: typed state, words, data frames, charts and the components that pages are put together from.

Only this package and the pages import Streamlit; nothing here imports torch.
"""
