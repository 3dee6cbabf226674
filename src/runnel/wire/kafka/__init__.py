"""The Kafka protocol: its messages as data (schema/), and a codec compiled from them on first use.

apis         which requests there are, and in which versions
error_codes  what a response can say went wrong
messages     one class per message
codec        frames to messages and back
"""
