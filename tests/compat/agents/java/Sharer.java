import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** A member of a share group, and its administrator: lines of JSON in, lines of JSON out. See ../../sharer.py. */
public final class Sharer {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();

    private final String bootstrap;
    private KafkaShareConsumer<byte[], byte[]> member;
    private Admin admin;
    private final Map<String, String> settled = new TreeMap<>(); // what the callback told: place -> error or ""
    private final Map<String, ConsumerRecord<byte[], byte[]>> polled = new HashMap<>(); // last; the client wants them back

    private Sharer(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] arguments) throws Exception {
        var sharer = new Sharer(arguments[0]);
        try (var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (var line = input.readLine(); line != null; line = input.readLine()) sharer.answer(JSON.readTree(line));
        }
        if (sharer.member != null) sharer.member.close();
        System.exit(0);
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
        System.out.println(JSON.writeValueAsString(reply));
        System.out.flush();
    }

    private Object perform(String verb, JsonNode request) throws Exception {
        var group = request.path("group").asText();
        return switch (verb) {
            case "open" -> open(group, request.get("topics"), request.get("options"));
            case "poll" -> poll(request.get("ms").asLong());
            case "acknowledge" -> acknowledge(request);
            case "commit" -> commit();
            case "commit_async" -> commitAsync();
            case "settled" -> taken();
            case "lock_ms" -> member.acquisitionLockTimeoutMs().orElse(-1);
            case "leave" -> leave();
            case "describe" -> describe(group);
            case "types" -> types(group);
            case "offsets" -> offsets(group);
            case "alter" -> alter(group, request);
            case "delete_offsets" -> admin().deleteShareGroupOffsets(group, Set.of(request.get("topic").asText())).all().get();
            case "delete" -> admin().deleteShareGroups(List.of(group)).all().get();
            case "configure" -> configure(group, request.get("settings"));
            case "settings" -> settings(group);
            default -> throw new IllegalArgumentException(verb);
        };
    }

    private Object open(String group, JsonNode topics, JsonNode options) {
        var settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        options.fields().forEachRemaining(one -> settings.put(one.getKey(), one.getValue().asText()));
        member = new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        member.setAcknowledgementCommitCallback((offsets, error) -> offsets.forEach((place, some) -> some.forEach(offset ->
            settled.put(place.topic() + "/" + place.partition() + "/" + offset, error == null ? "" : error.getClass().getSimpleName()))));
        var names = new ArrayList<String>();
        topics.forEach(name -> names.add(name.asText()));
        member.subscribe(names);
        return null;
    }

    private List<Map<String, Object>> poll(long ms) {
        var found = new ArrayList<Map<String, Object>>();
        var records = member.poll(Duration.ofMillis(ms));
        if (!records.isEmpty()) polled.clear();
        for (var record : records) {
            polled.put(record.topic() + "/" + record.partition() + "/" + record.offset(), record);
            found.add(json(record));
        }
        return found;
    }

    private static Map<String, Object> json(ConsumerRecord<byte[], byte[]> record) {
        var fields = new HashMap<String, Object>();
        fields.put("topic", record.topic());
        fields.put("partition", record.partition());
        fields.put("offset", record.offset());
        fields.put("value", record.value() == null ? null : HEX.formatHex(record.value()));
        fields.put("attempt", record.deliveryCount().map(Short::intValue).orElse(-1));
        return fields;
    }

    private Object acknowledge(JsonNode request) {
        var type = AcknowledgeType.valueOf(request.get("how").asText());
        for (var place : request.get("places")) {
            member.acknowledge(polled.get(place.get(0).asText() + "/" + place.get(1).asInt() + "/" + place.get(2).asLong()), type);
        }
        return null;
    }

    private Map<String, String> commit() {
        var results = new TreeMap<String, String>();
        member.commitSync(Duration.ofSeconds(30)).forEach((place, error) ->
            results.put(place.topic() + "/" + place.partition(), error.map(one -> one.getClass().getSimpleName()).orElse("")));
        return results;
    }

    private Object commitAsync() {
        member.commitAsync();
        return null;
    }

    private Map<String, String> taken() {
        var all = new TreeMap<>(settled);
        settled.clear();
        return all;
    }

    private Object leave() {
        member.close();
        member = null;
        settled.clear();
        polled.clear();
        return null;
    }

    // --- administration
    private Admin admin() {
        if (admin == null) admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        return admin;
    }

    private Map<String, Object> describe(String group) throws Exception {
        var found = admin().describeShareGroups(List.of(group)).describedGroups().get(group).get();
        var members = found.members().stream().map(one -> one.assignment().topicPartitions().stream()
            .map(place -> place.topic() + "/" + place.partition()).sorted().toList()).toList();
        return Map.of("state", found.groupState().toString(), "epoch", found.groupEpoch(), "members", members);
    }

    private Object types(String group) throws Exception {
        return admin().listGroups(ListGroupsOptions.forShareGroups()).all().get().stream()
            .filter(one -> one.groupId().equals(group))
            .map(one -> one.type().orElse(GroupType.UNKNOWN) + " " + one.protocol() + " " + one.groupState().get()).toList();
    }

    private Map<String, Object> offsets(String group) throws Exception {
        var found = admin().listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec()))
            .partitionsToOffsetInfo(group).get();
        var shown = new TreeMap<String, Object>();
        found.forEach((place, info) -> shown.put(place.topic() + "/" + place.partition(),
            info == null ? List.of() : List.of(info.startOffset(), info.lag().orElse(-1L))));
        return shown;
    }

    private Object alter(String group, JsonNode request) throws Exception {
        var place = new TopicPartition(request.get("topic").asText(), request.get("partition").asInt());
        return admin().alterShareGroupOffsets(group, Map.of(place, request.get("offset").asLong())).all().get();
    }

    private Object configure(String group, JsonNode settings) throws Exception {
        var changes = new ArrayList<AlterConfigOp>();
        settings.fields().forEachRemaining(one ->
            changes.add(new AlterConfigOp(new ConfigEntry(one.getKey(), one.getValue().asText()), AlterConfigOp.OpType.SET)));
        return admin().incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group), changes)).all().get();
    }

    private Map<String, String> settings(String group) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        var shown = new TreeMap<String, String>();
        admin().describeConfigs(List.of(resource)).all().get().get(resource).entries()
            .forEach(one -> shown.put(one.name(), one.value()));
        return shown;
    }
}
