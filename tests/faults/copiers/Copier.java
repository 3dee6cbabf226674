import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.Timer;
import java.util.TimerTask;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The Java client: from 4.0 on, the new protocol of transactions (KIP-890). See work.py for what a worker does. */
public final class Copier {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static volatile boolean over;

    private final JsonNode task;
    private final FileWriter journal;
    private final KafkaProducer<String, String> producer;
    private final KafkaConsumer<String, String> consumer;
    private final Random chance = new Random();
    private int number;

    private Copier(JsonNode task) throws IOException {
        this.task = task;
        journal = new FileWriter(text("journal"), StandardCharsets.UTF_8, true);
        var common = Map.of("bootstrap.servers", text("bootstrap"), "metadata.max.age.ms", "5000", "request.timeout.ms", "5000",
            "reconnect.backoff.max.ms", "500", "default.api.timeout.ms", "20000");
        var sending = new Properties();
        sending.putAll(common);
        sending.putAll(Map.of("transactional.id", text("transactional_id"), "transaction.timeout.ms", text("timeout_ms"),
            "delivery.timeout.ms", "20000", "max.block.ms", "20000", "linger.ms", "5"));
        producer = new KafkaProducer<>(sending, new StringSerializer(), new StringSerializer());
        var reading = new Properties();
        reading.putAll(common);
        reading.putAll(Map.of("group.id", text("group"), "group.instance.id", text("transactional_id"), "enable.auto.commit", "false",
            "auto.offset.reset", "earliest", "isolation.level", "read_committed", "session.timeout.ms", "6000",
            "heartbeat.interval.ms", "500", "max.poll.records", text("batch_max")));
        consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
    }

    private String text(String name) {
        return task.get(name).asText();
    }

    public static void main(String[] arguments) throws Exception {
        var waiting = new Thread(() -> {
            try {
                while (System.in.read() >= 0) continue;
            } catch (IOException error) {
                error.printStackTrace();
            }
            over = true;
        });
        waiting.setDaemon(true);
        waiting.start();
        try {
            new Copier(JSON.readTree(arguments[0])).work();
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        Runtime.getRuntime().halt(0);
    }

    private void work() throws Exception {
        producer.initTransactions();
        consumer.subscribe(List.of(text("source")));
        reach("open", Map.of());
        while (!over) {
            var messages = new ArrayList<ConsumerRecord<String, String>>();
            consumer.poll(Duration.ofMillis(100)).forEach(messages::add);
            if (!messages.isEmpty()) transact(messages);
        }
    }

    private void transact(List<ConsumerRecord<String, String>> messages) throws Exception {
        number++;
        var partitions = task.get("partitions").asInt();
        var records = new ArrayList<ProducerRecord<String, String>>();
        var written = new ArrayList<List<Object>>();
        for (var message : messages) {
            var key = Integer.parseInt(message.value().split("/")[0]);
            var value = message.value() + ">" + text("worker") + ":" + number;
            var partition = key / partitions % partitions;
            records.add(new ProducerRecord<>(text("target"), partition, String.valueOf(key), value));
            written.add(List.of(partition, value, message.value()));
        }
        reach("polled", Map.of());
        producer.beginTransaction();
        reach("begun", Map.of("outputs", written));
        var sent = new ArrayList<Future<RecordMetadata>>();
        for (var record : records) sent.add(producer.send(record));
        producer.flush();
        for (var future : sent) future.get();
        reach("produced", Map.of());
        var offsets = new HashMap<TopicPartition, OffsetAndMetadata>();
        for (var message : messages) offsets.put(place(message), new OffsetAndMetadata(message.offset() + 1));
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        reach("offsets", Map.of());
        if (chance.nextDouble() < task.get("aborts").asDouble()) {
            abort(messages);
            return;
        }
        reach("committing", Map.of());
        producer.commitTransaction();
        reach("committed", Map.of());
    }

    private void abort(List<ConsumerRecord<String, String>> messages) throws Exception {
        reach("aborting", Map.of());
        producer.abortTransaction();
        var first = new HashMap<TopicPartition, Long>();
        for (var message : messages) first.putIfAbsent(place(message), message.offset());
        first.forEach(consumer::seek);
        reach("aborted", Map.of());
    }

    private static TopicPartition place(ConsumerRecord<String, String> message) {
        return new TopicPartition(message.topic(), message.partition());
    }

    private void reach(String step, Map<String, ?> more) throws Exception {
        var line = new HashMap<String, Object>(more);
        line.putAll(Map.of("at", System.nanoTime() / 1e9, "worker", text("worker"), "transaction", number, "step", step));
        journal.write(JSON.writeValueAsString(line) + "\n");
        journal.flush();
        if (!step.equals(text("at_step")) || number != task.get("at_transaction").asInt()) return;
        var after = task.get("after_ms").asDouble();
        if (after == 0) {
            stop();
        } else {
            new Timer(true).schedule(new TimerTask() {
                public void run() {
                    stop();
                }
            }, (long) after);
        }
    }

    private void stop() {
        try {
            new ProcessBuilder("kill", "-s", text("by").substring(3), String.valueOf(ProcessHandle.current().pid())).start().waitFor();
        } catch (IOException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }
}
