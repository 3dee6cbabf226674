"""A small asynchronous client of the Kafka protocol.

    cluster = Cluster(["127.0.0.1:9092"], clock=clock)
    async with Producer(cluster) as producer:
        delivery = await producer.send("orders", b"value", key=b"key")
        print((await delivery).offset)

It runs on the event loop it is called on: no threads, no global state, a deadline on every wait. Time for deadlines is
the loop's; timestamps come from the Clock and chance from the Rng that are handed in, so it runs simulated as well.
"""
