import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The agent of the Java client: lines of JSON in, lines of JSON out. See ../../agent.py for the language. */
public final class Agent {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();
    private static final Duration SHORT = Duration.ofMillis(100);

    private final String bootstrap;
    private KafkaConsumer<byte[], byte[]> member;
    private Set<TopicPartition> held = Set.of();
    private Admin admin;
    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    private ConsumerGroupMetadata seat; // in the group, as it was when it was asked to keep it

    private Agent(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] arguments) throws Exception {
        new Agent(arguments[0]).serve();
        System.exit(0);
    }

    private void serve() throws Exception {
        var requests = new LinkedBlockingQueue<Optional<String>>();
        var listener = new Thread(() -> listen(requests));
        listener.setDaemon(true);
        listener.start();
        while (true) {
            var line = member == null ? requests.take() : requests.poll();
            if (line == null) {
                report();
            } else if (line.isPresent()) {
                answer(JSON.readTree(line.get()));
            } else {
                break;
            }
        }
        if (member != null) member.close();
    }

    private static void listen(LinkedBlockingQueue<Optional<String>> requests) {
        try (var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (var line = input.readLine(); line != null; line = input.readLine()) requests.add(Optional.of(line));
        } catch (java.io.IOException error) {
            error.printStackTrace();
        }
        requests.add(Optional.empty());
    }

    private static void say(Map<String, ?> message) throws Exception {
        System.out.println(JSON.writeValueAsString(message));
        System.out.flush();
    }

    private void answer(JsonNode request) throws Exception {
        var reply = new HashMap<String, Object>();
        reply.put("id", request.get("id").asInt());
        try {
            reply.put("ok", perform(request.get("do").asText(), request));
        } catch (Throwable error) {
            error.printStackTrace();
            var cause = error instanceof ExecutionException ? error.getCause() : error;
            var code = Errors.forException(cause).code();
            reply.put("error", code == Errors.UNKNOWN_SERVER_ERROR.code() ? null : code);
            reply.put("message", cause.toString());
        }
        say(reply);
    }

    private void report() throws Exception {
        for (var record : member.poll(SHORT)) say(Map.of("event", "record", "record", json(record)));
        var now = Set.copyOf(member.assignment());
        if (!now.equals(held)) {
            held = now;
            say(Map.of("event", "assigned", "partitions", places(now)));
        }
    }

    private static List<List<Object>> places(Collection<TopicPartition> partitions) {
        return partitions.stream().map(place -> List.<Object>of(place.topic(), place.partition())).toList();
    }

    private static Map<String, Object> json(ConsumerRecord<byte[], byte[]> record) {
        var headers = new ArrayList<List<String>>();
        for (var header : record.headers()) {
            var pair = new ArrayList<String>();
            pair.add(header.key());
            pair.add(hex(header.value()));
            headers.add(pair);
        }
        var fields = new HashMap<String, Object>();
        fields.put("partition", record.partition());
        fields.put("offset", record.offset());
        fields.put("timestamp", record.timestamp());
        fields.put("key", hex(record.key()));
        fields.put("value", hex(record.value()));
        fields.put("headers", headers);
        return fields;
    }

    private static String hex(byte[] data) {
        return data == null ? null : HEX.formatHex(data);
    }

    private static byte[] unhex(JsonNode text) {
        return text == null || text.isNull() ? null : HEX.parseHex(text.asText());
    }

    private Object perform(String verb, JsonNode request) throws Exception {
        var topic = request.path("topic").asText();
        var group = request.path("group").asText();
        var place = new TopicPartition(topic, request.path("partition").asInt());
        return switch (verb) {
            case "produce" -> produce(topic, request);
            case "read" -> read(topic, request);
            case "open_producer" -> openProducer(request.get("producer").asText(), request);
            case "begin", "send", "send_offsets", "commit_transaction", "abort_transaction" ->
                transact(verb, producers.get(request.get("producer").asText()), request);
            case "close_producer" -> transact(verb, producers.remove(request.get("producer").asText()), request);
            case "keep_seat" -> {
                seat = member.groupMetadata();
                yield null;
            }
            case "list_transactions" -> admin().listTransactions().all().get().stream()
                .collect(Collectors.toMap(one -> one.transactionalId(), one -> one.state().toString()));
            case "describe_transaction" -> describeTransaction(request.get("transactional_id").asText());
            case "describe_producers" -> describeProducers(place);
            case "abort_from_outside" -> abortFromOutside(place, request);
            case "fence" -> admin().fenceProducers(List.of(request.get("transactional_id").asText())).all().get();
            case "offsets" -> offsets(place, request.get("timestamp").asLong());
            case "join" -> join(group, request.get("topics"), request.get("options"));
            case "commit" -> commit();
            case "committed" -> committed(place);
            case "commit_alone" -> commitAlone(group, place, request.get("offset").asLong());
            case "seek" -> seek(place, request.get("offset").asLong());
            case "leave" -> leave();
            case "validate_topic" -> admin()
                .createTopics(List.of(new NewTopic(topic, 3, (short) 1)), new CreateTopicsOptions().validateOnly(true)).all().get();
            case "describe_topic_by_id" -> admin()
                .describeTopics(TopicCollection.ofTopicIds(List.of(Uuid.fromString(request.get("topic_id").asText()))))
                .allTopicIds().get().values().iterator().next().name();
            case "delete_topic_by_id" -> admin()
                .deleteTopics(TopicCollection.ofTopicIds(List.of(Uuid.fromString(request.get("topic_id").asText())))).all().get();
            case "group_type" -> groupType(group);
            case "features" -> admin().describeFeatures().featureMetadata().get().finalizedFeatures().keySet();
            case "broker_config" -> brokerConfig();
            case "create_topic" -> createTopic(topic, request);
            case "delete_topic" -> admin().deleteTopics(List.of(topic)).all().get();
            case "create_partitions" -> admin()
                .createPartitions(Map.of(topic, NewPartitions.increaseTo(request.get("total").asInt()))).all().get();
            case "list_topics" -> admin().listTopics().names().get().stream().sorted().toList();
            case "describe_topic" -> describeTopic(topic);
            case "describe_config" -> describeConfig(topic);
            case "alter_config" -> alterConfig(topic, request);
            case "delete_records" -> admin()
                .deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(request.get("offset").asLong())))
                .lowWatermarks().get(place).get().lowWatermark();
            case "list_groups" -> admin().listConsumerGroups().all().get().stream().map(g -> g.groupId()).toList();
            case "describe_group" -> describeGroup(group);
            case "delete_group" -> admin().deleteConsumerGroups(List.of(group)).all().get();
            case "group_offsets" -> groupOffsets(group);
            case "set_group_offset" -> admin()
                .alterConsumerGroupOffsets(group, Map.of(place, new OffsetAndMetadata(request.get("offset").asLong())))
                .all().get();
            case "delete_group_offset" -> admin().deleteConsumerGroupOffsets(group, Set.of(place)).all().get();
            case "remove_members" -> admin()
                .removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions()).all().get();
            case "describe_cluster" -> describeCluster();
            case "log_dirs" -> logDirs(topic);
            default -> throw new UnsupportedOperationException(verb);
        };
    }

    private Properties settings(JsonNode options) {
        var settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        var fields = options.path("native").fields();
        while (fields.hasNext()) {
            var field = fields.next();
            settings.put(field.getKey(), field.getValue().asText());
        }
        return settings;
    }

    private Object produce(String topic, JsonNode request) throws Exception {
        var options = request.get("options");
        var settings = settings(options);
        settings.put("compression.type", request.get("codec").asText());
        settings.put("acks", request.get("acks").asText());
        settings.put("enable.idempotence", String.valueOf(options.path("idempotent").asBoolean(false)));
        settings.putIfAbsent("linger.ms", "50");
        var sent = new ArrayList<Future<RecordMetadata>>();
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (var item : request.get("records")) {
                sent.add(producer.send(record(topic, item)));
            }
            producer.flush();
            var placed = new ArrayList<List<Long>>();
            for (var future : sent) {
                var metadata = future.get();
                placed.add(List.of((long) metadata.partition(), metadata.hasOffset() ? metadata.offset() : -1L));
            }
            return placed;
        }
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, JsonNode item) {
        var partition = item.get("partition").isNull() ? null : item.get("partition").asInt();
        var timestamp = item.get("timestamp").isNull() ? null : item.get("timestamp").asLong();
        var record = new ProducerRecord<>(topic, partition, timestamp, unhex(item.get("key")), unhex(item.get("value")));
        for (var header : item.get("headers")) record.headers().add(header.get(0).asText(), unhex(header.get(1)));
        return record;
    }

    // --- transactions
    private Object openProducer(String name, JsonNode request) {
        var settings = settings(request);
        settings.put("transactional.id", request.get("transactional_id").asText());
        settings.put("transaction.timeout.ms", request.get("timeout_ms").asText());
        var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        producers.put(name, producer);
        producer.initTransactions();
        return null;
    }

    private Object transact(String verb, KafkaProducer<byte[], byte[]> producer, JsonNode request) throws Exception {
        switch (verb) {
            case "begin" -> producer.beginTransaction();
            case "send" -> send(producer, request);
            case "send_offsets" -> sendOffsets(producer, request);
            case "commit_transaction" -> producer.commitTransaction();
            case "abort_transaction" -> producer.abortTransaction();
            default -> producer.close(Duration.ZERO);
        }
        return null;
    }

    private void send(KafkaProducer<byte[], byte[]> producer, JsonNode request) throws Exception {
        var sent = new ArrayList<Future<RecordMetadata>>();
        for (var item : request.get("records")) sent.add(producer.send(record(request.get("topic").asText(), item)));
        producer.flush();
        for (var future : sent) future.get();
    }

    private void sendOffsets(KafkaProducer<byte[], byte[]> producer, JsonNode request) {
        var offsets = new HashMap<TopicPartition, OffsetAndMetadata>();
        for (var place : request.get("offsets"))
            offsets.put(new TopicPartition(place.get(0).asText(), place.get(1).asInt()), new OffsetAndMetadata(place.get(2).asLong()));
        var asMember = request.get("as_member").asBoolean();
        producer.sendOffsetsToTransaction(offsets, asMember ? seat : new ConsumerGroupMetadata(request.get("group").asText()));
    }

    private Object describeTransaction(String id) throws Exception {
        var found = admin().describeTransactions(List.of(id)).description(id).get();
        return Map.of("state", found.state().toString(), "producer_id", found.producerId(), "epoch", found.producerEpoch(),
            "timeout_ms", found.transactionTimeoutMs(), "partitions", places(found.topicPartitions()));
    }

    private Object describeProducers(TopicPartition place) throws Exception {
        return admin().describeProducers(List.of(place)).partitionResult(place).get().activeProducers().stream()
            .map(state -> Map.of("producer_id", state.producerId(), "epoch", state.producerEpoch(),
                "coordinator_epoch", state.coordinatorEpoch().orElse(-1), "begins_at", state.currentTransactionStartOffset().orElse(-1L),
                "last_sequence", state.lastSequence()))
            .toList();
    }

    private Object abortFromOutside(TopicPartition place, JsonNode request) throws Exception {
        var spec = new AbortTransactionSpec(place, request.get("producer_id").asLong(),
            (short) request.get("epoch").asInt(), request.get("coordinator_epoch").asInt());
        return admin().abortTransaction(spec).all().get();
    }

    private KafkaConsumer<byte[], byte[]> consumer(Properties settings) {
        settings.put("enable.auto.commit", "false");
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private Object read(String topic, JsonNode request) {
        var places = new ArrayList<TopicPartition>();
        for (var number : request.get("partitions")) places.add(new TopicPartition(topic, number.asInt()));
        var found = new ArrayList<Map<String, Object>>();
        var settings = settings(request);
        settings.put("isolation.level", request.get("isolation").asText());
        try (var consumer = consumer(settings)) {
            consumer.assign(places);
            consumer.seekToBeginning(places);
            var ends = consumer.endOffsets(places);
            while (places.stream().anyMatch(place -> consumer.position(place) < ends.get(place)))
                for (var record : consumer.poll(SHORT)) found.add(json(record));
        }
        return found;
    }

    private Object offsets(TopicPartition place, long timestamp) throws Exception {
        var answer = new HashMap<String, Object>();
        try (var consumer = consumer(settings(JSON.createObjectNode()))) {
            answer.put("earliest", consumer.beginningOffsets(List.of(place)).get(place));
            answer.put("latest", consumer.endOffsets(List.of(place)).get(place));
            var at = consumer.offsetsForTimes(Map.of(place, timestamp)).get(place);
            answer.put("at", at == null ? null : at.offset());
        }
        answer.put("largest", admin().listOffsets(Map.of(place, OffsetSpec.maxTimestamp())).all().get().get(place).offset());
        return answer;
    }

    // --- a member of a group
    private Object join(String group, JsonNode topics, JsonNode options) {
        var settings = settings(options);
        settings.put("group.id", group);
        settings.put("auto.offset.reset", options.path("reset").asText("earliest"));
        settings.put("metadata.max.age.ms", "1000");
        settings.put("group.protocol", options.path("protocol").asText("classic"));
        if (options.path("protocol").asText("classic").equals("classic")) {
            settings.put("session.timeout.ms", options.path("session_ms").asText("6000"));
            settings.put("heartbeat.interval.ms", "500");
            settings.put("partition.assignment.strategy", assignor(options.path("strategy").asText("range")));
        }
        if (options.has("instance")) settings.put("group.instance.id", options.get("instance").asText());
        member = consumer(settings);
        if (options.has("broker_pattern")) {
            subscribeByBrokerPattern(options.get("broker_pattern").asText());
        } else if (options.has("pattern")) {
            member.subscribe(Pattern.compile(options.get("pattern").asText()));
        } else {
            var names = new ArrayList<String>();
            for (var name : topics) names.add(name.asText());
            member.subscribe(names);
        }
        return null;
    }

    /** Java 4 alone can hand the expression to the broker (KIP-848), so it is found by name. */
    private void subscribeByBrokerPattern(String text) {
        try {
            var type = Class.forName("org.apache.kafka.clients.consumer.SubscriptionPattern");
            var pattern = type.getConstructor(String.class).newInstance(text);
            member.getClass().getMethod("subscribe", type).invoke(member, pattern);
        } catch (ReflectiveOperationException error) {
            throw new UnsupportedOperationException(error);
        }
    }

    private static String assignor(String strategy) {
        var names = Map.of("range", "Range", "roundrobin", "RoundRobin", "sticky", "Sticky", "cooperative-sticky", "CooperativeSticky");
        return "org.apache.kafka.clients.consumer." + names.get(strategy) + "Assignor";
    }

    private Object commit() {
        member.commitSync();
        return null;
    }

    private Object committed(TopicPartition place) {
        var offset = member.committed(Set.of(place)).get(place);
        return offset == null ? null : offset.offset();
    }

    private Object commitAlone(String group, TopicPartition place, long offset) {
        var settings = settings(JSON.createObjectNode());
        settings.put("group.id", group);
        try (var consumer = consumer(settings)) {
            consumer.assign(List.of(place));
            consumer.commitSync(Map.of(place, new OffsetAndMetadata(offset, "by hand")));
            return consumer.committed(Set.of(place)).get(place).offset();
        }
    }

    private Object seek(TopicPartition place, long offset) {
        member.seek(place, offset);
        return null;
    }

    private Object leave() {
        member.close();
        member = null;
        held = Set.of();
        return null;
    }

    // --- administration
    private Admin admin() {
        if (admin == null) admin = Admin.create(settings(JSON.createObjectNode()));
        return admin;
    }

    private Object createTopic(String topic, JsonNode request) throws Exception {
        var config = new HashMap<String, String>();
        request.get("config").fields().forEachRemaining(field -> config.put(field.getKey(), field.getValue().asText()));
        var wanted = new NewTopic(topic, request.get("partitions").asInt(), (short) 1).configs(config);
        var result = admin().createTopics(List.of(wanted));
        result.all().get();
        if (result.numPartitions(topic).get() != request.get("partitions").asInt()) throw new IllegalStateException();
        result.config(topic).get();
        return null;
    }

    private Object describeTopic(String topic) throws Exception {
        var found = admin().describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        var leaders = found.partitions().stream().map(part -> part.leader().id()).toList();
        return Map.of("partitions", leaders.size(), "leaders", leaders, "id", found.topicId().toString());
    }

    private Object describeConfig(String topic) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        var values = new TreeMap<String, String>();
        for (var entry : admin().describeConfigs(List.of(resource)).all().get().get(resource).entries())
            values.put(entry.name(), entry.value());
        return values;
    }

    private Object alterConfig(String topic, JsonNode request) throws Exception {
        var value = request.get("value");
        var operation = value.isNull() ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET;
        var change = new AlterConfigOp(new ConfigEntry(request.get("name").asText(), value.isNull() ? null : value.asText()), operation);
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        return admin().incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
    }

    private Object groupType(String group) throws Exception {
        return admin().listConsumerGroups().all().get().stream().filter(found -> found.groupId().equals(group))
            .map(found -> found.type().map(Object::toString).orElse("unknown")).findFirst().orElse("none");
    }

    private Object brokerConfig() throws Exception {
        var id = admin().describeCluster().nodes().get().iterator().next().idString();
        var resource = new ConfigResource(ConfigResource.Type.BROKER, id);
        var values = new TreeMap<String, String>();
        for (var entry : admin().describeConfigs(List.of(resource)).all().get().get(resource).entries())
            values.put(entry.name(), entry.value());
        return values;
    }

    private Object describeGroup(String group) throws Exception {
        var found = admin().describeConsumerGroups(List.of(group)).all().get().get(group);
        var members = found.members().stream().map(one -> places(one.assignment().topicPartitions())).toList();
        var state = found.state().name();
        return Map.of("state", state, "members", members);
    }

    private Object groupOffsets(String group) throws Exception {
        return admin().listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().entrySet().stream()
            .filter(entry -> entry.getValue() != null)
            .collect(Collectors.toMap(e -> e.getKey().topic() + "/" + e.getKey().partition(), e -> e.getValue().offset()));
    }

    private Object describeCluster() throws Exception {
        var found = admin().describeCluster();
        var brokers = found.nodes().get().stream().map(node -> List.<Object>of(node.id(), node.host(), node.port())).toList();
        return Map.of("brokers", brokers, "controller", found.controller().get().id(), "cluster_id", found.clusterId().get());
    }

    private Object logDirs(String topic) throws Exception {
        var ids = admin().describeCluster().nodes().get().stream().map(Node::id).toList();
        var bytes = 0L;
        var count = 0;
        for (var folders : admin().describeLogDirs(ids).allDescriptions().get().values()) {
            for (var folder : folders.values()) {
                for (var entry : folder.replicaInfos().entrySet()) {
                    if (!entry.getKey().topic().equals(topic)) continue;
                    count++;
                    bytes += entry.getValue().size();
                }
            }
        }
        return Map.of("partitions", count, "bytes", bytes);
    }
}
