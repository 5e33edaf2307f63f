"""The pictures of these chapters, drawn by ``write.py``."""
