"""The fleet: cars that tell where they are, what is made of it, and a page that shows it.

city -> cars -> sending -> topic `cars` -> job (track, heat) -> topics `fleet.*` -> page
"""
