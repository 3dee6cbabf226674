// The agent of kafkajs: lines of JSON in, lines of JSON out. See ../../agent.py for the language.
import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline";
import kafkajs from "kafkajs";
import { install } from "./codecs.mjs";

const { AssignerProtocol, CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = kafkajs;
const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
};

const SEND_MAX = 1000; // messages for one send: kafkajs makes one batch of them

const log = () => (entry) => process.stderr.write(`${entry.namespace} ${JSON.stringify(entry.log)}\n`);
const kafka = new Kafka({
  brokers: [process.argv[2]],
  clientId: "kafkajs-agent",
  logLevel: logLevel.WARN,
  logCreator: log,
  retry: { initialRetryTime: 100, retries: 8 },
});
const say = (message) => process.stdout.write(JSON.stringify(message) + "\n");
const unhex = (text) => (text === null ? null : Buffer.from(text, "hex"));
const hex = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString("hex"));

function recordOf(partition, message) {
  const headers = [];
  for (const [name, value] of Object.entries(message.headers ?? {}))
    for (const one of Array.isArray(value) ? value : [value]) headers.push([name, hex(one)]);
  return {
    partition,
    offset: Number(message.offset),
    timestamp: Number(message.timestamp),
    key: hex(message.key),
    value: hex(message.value),
    headers,
  };
}

function messageOf(record) {
  const headers = {};
  for (const [name, value] of record.headers) (headers[name] ??= []).push(unhex(value));
  const message = { key: unhex(record.key), value: unhex(record.value), headers };
  if (record.partition !== null) message.partition = record.partition;
  if (record.timestamp !== null) message.timestamp = String(record.timestamp);
  return message;
}

async function administer(work) {
  const admin = kafka.admin();
  await admin.connect();
  try {
    return await work(admin);
  } finally {
    await admin.disconnect();
  }
}

async function send(producer, topic, records, compression, acks) {
  const sent = await producer.send({ topic, messages: records.map(messageOf), compression, acks });
  if (acks === 0) return records.map(() => [-1, -1]);
  // kafkajs tells one base offset for each partition: the offsets follow in the order of sending.
  const next = new Map(sent.map((part) => [part.partition, Number(part.baseOffset)]));
  return records.map(({ partition }) => {
    if (!next.has(partition)) return [-1, -1];
    const offset = next.get(partition);
    next.set(partition, offset + 1);
    return [partition, offset];
  });
}

const member = { consumer: null, positions: new Map() };
const producers = new Map(); // by the name that the test gave: the producer, and its open transaction

const verbs = {
  async produce({ topic, records, codec, acks, options }) {
    const producer = kafka.producer({ idempotent: options.idempotent ?? false, ...options.native });
    await producer.connect();
    try {
      const placed = [];
      for (let at = 0; at < records.length; at += SEND_MAX)
        placed.push(...(await send(producer, topic, records.slice(at, at + SEND_MAX), CODECS[codec], acks)));
      return placed;
    } finally {
      await producer.disconnect();
    }
  },

  async read({ topic, partitions, isolation }) {
    const offsets = await administer((admin) => admin.fetchTopicOffsets(topic));
    const left = new Map();
    for (const { partition, low, high } of offsets)
      if (partitions.includes(partition) && Number(low) < Number(high)) left.set(partition, Number(high));
    const found = [];
    if (left.size === 0) return found;
    const readUncommitted = isolation === "read_uncommitted";
    const settings = { groupId: randomUUID(), heartbeatInterval: 500, maxWaitTimeInMs: 500, readUncommitted };
    const consumer = kafka.consumer(settings);
    await consumer.connect();
    await consumer.subscribe({ topic, fromBeginning: true });
    await new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
      // What ends a transaction is never shown, but it counts: a batch that holds nothing else is told of all the same.
      consumer.on(consumer.events.END_BATCH_PROCESS, ({ payload }) => {
        if (Number(payload.lastOffset) + 1 >= (left.get(payload.partition) ?? 0)) left.delete(payload.partition);
        if (left.size === 0) resolve();
      });
      const eachBatch = async ({ batch, resolveOffset }) => {
        for (const message of batch.messages) {
          if (!left.has(batch.partition) || Number(message.offset) >= left.get(batch.partition)) continue;
          found.push(recordOf(batch.partition, message));
          resolveOffset(message.offset);
        }
      };
      consumer.run({ autoCommit: false, eachBatch }).catch(reject);
    });
    await consumer.disconnect();
    return found;
  },

  async offsets({ topic, partition, timestamp }) {
    return administer(async (admin) => {
      const now = (await admin.fetchTopicOffsets(topic)).find((one) => one.partition === partition);
      const at = (await admin.fetchTopicOffsetsByTimestamp(topic, timestamp)).find((one) => one.partition === partition);
      // kafkajs answers with the end when no record is as late as that.
      const found = at.offset === now.high ? null : Number(at.offset);
      return { earliest: Number(now.low), latest: Number(now.high), at: found };
    });
  },

  // --- transactions
  async open_producer({ producer, transactional_id: transactionalId, timeout_ms: transactionTimeout }) {
    const made = kafka.producer({ transactionalId, transactionTimeout, maxInFlightRequests: 1, idempotent: true });
    await made.connect();
    producers.set(producer, { made, transaction: null });
    return null;
  },

  async begin({ producer }) {
    const one = producers.get(producer);
    one.transaction = await one.made.transaction();
    return null;
  },

  async send({ producer, topic, records }) {
    const { transaction } = producers.get(producer);
    for (let at = 0; at < records.length; at += SEND_MAX)
      await transaction.send({ topic, messages: records.slice(at, at + SEND_MAX).map(messageOf) });
    return null;
  },

  async send_offsets({ producer, group, offsets }) {
    const topics = offsets.map(([topic, partition, offset]) => ({ topic, partitions: [{ partition, offset: String(offset) }] }));
    await producers.get(producer).transaction.sendOffsets({ consumerGroupId: group, topics });
    return null;
  },

  async commit_transaction({ producer }) {
    await producers.get(producer).transaction.commit();
    return null;
  },

  async abort_transaction({ producer }) {
    await producers.get(producer).transaction.abort();
    return null;
  },

  async close_producer({ producer }) {
    await producers.get(producer).made.disconnect();
    producers.delete(producer);
    return null;
  },

  // --- a member of a group
  async join({ group, topics, options }) {
    const consumer = kafka.consumer({
      groupId: group,
      sessionTimeout: options.session_ms ?? 6000,
      heartbeatInterval: 500,
      metadataMaxAge: 1000,
      maxWaitTimeInMs: 200,
    });
    member.consumer = consumer;
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
      const partitions = [];
      for (const [topic, numbers] of Object.entries(payload.memberAssignment ?? {}))
        for (const number of numbers) partitions.push([topic, number]);
      member.positions.clear();
      say({ event: "assigned", partitions });
    });
    consumer.on(consumer.events.CRASH, ({ payload }) => process.stderr.write(`crash ${payload.error.stack}\n`));
    await consumer.connect();
    const wanted = options.pattern ? [new RegExp(options.pattern)] : topics;
    await consumer.subscribe({ topics: wanted, fromBeginning: (options.reset ?? "earliest") === "earliest" });
    const eachMessage = async ({ topic, partition, message }) => {
      member.positions.set(`${topic}/${partition}`, { topic, partition, offset: String(Number(message.offset) + 1) });
      say({ event: "record", record: recordOf(partition, message) });
    };
    await consumer.run({ autoCommit: false, eachMessage });
    return null;
  },

  async commit() {
    await member.consumer.commitOffsets([...member.positions.values()]);
    return null;
  },

  async seek({ topic, partition, offset }) {
    member.consumer.seek({ topic, partition, offset: String(offset) });
    return null;
  },

  async leave() {
    await member.consumer.disconnect();
    member.consumer = null;
    return null;
  },

  // --- administration
  create_topic: ({ topic, partitions, config }) =>
    administer(async (admin) => {
      const configEntries = Object.entries(config).map(([name, value]) => ({ name, value }));
      const wanted = { topic, numPartitions: partitions, replicationFactor: 1, configEntries };
      // false means that the topic exists: kafkajs hides that error.
      if (!(await admin.createTopics({ topics: [wanted] }))) throw Object.assign(new Error("exists"), { code: 36 });
      return null;
    }),

  delete_topic: ({ topic }) => administer(async (admin) => (await admin.deleteTopics({ topics: [topic] })) ?? null),

  create_partitions: ({ topic, total }) =>
    administer(async (admin) => {
      await admin.createPartitions({ topicPartitions: [{ topic, count: total }] });
      return null;
    }),

  list_topics: () => administer(async (admin) => (await admin.listTopics()).sort()),

  describe_topic: ({ topic }) =>
    administer(async (admin) => {
      const { topics } = await admin.fetchTopicMetadata({ topics: [topic] });
      const parts = topics[0].partitions;
      return { partitions: parts.length, leaders: parts.map((part) => part.leader) };
    }),

  describe_config: ({ topic }) =>
    administer(async (admin) => {
      const resources = [{ type: ConfigResourceTypes.TOPIC, name: topic }];
      const found = await admin.describeConfigs({ resources, includeSynonyms: false });
      return Object.fromEntries(found.resources[0].configEntries.map((entry) => [entry.configName, entry.configValue]));
    }),

  replace_config: ({ topic, config }) =>
    administer(async (admin) => {
      const configEntries = Object.entries(config).map(([name, value]) => ({ name, value }));
      const resources = [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries }];
      await admin.alterConfigs({ validateOnly: false, resources });
      return null;
    }),

  delete_records: ({ topic, partition, offset }) =>
    administer(async (admin) => {
      await admin.fetchTopicOffsets(topic); // deleting needs the topic's metadata, and does not load it
      await admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(offset) }] });
      const now = (await admin.fetchTopicOffsets(topic)).find((one) => one.partition === partition);
      return Number(now.low);
    }),

  list_groups: () => administer(async (admin) => (await admin.listGroups()).groups.map((group) => group.groupId)),

  describe_group: ({ group }) =>
    administer(async (admin) => {
      const found = (await admin.describeGroups([group])).groups[0];
      const members = found.members.map((one) => {
        const { assignment } = AssignerProtocol.MemberAssignment.decode(one.memberAssignment) ?? { assignment: {} };
        return Object.entries(assignment).flatMap(([topic, numbers]) => numbers.map((number) => [topic, number]));
      });
      return { state: found.state.toUpperCase(), members };
    }),

  delete_group: ({ group }) =>
    administer(async (admin) => {
      await admin.deleteGroups([group]);
      return null;
    }),

  group_offsets: ({ group }) =>
    administer(async (admin) => {
      const found = {};
      for (const { topic, partitions } of await admin.fetchOffsets({ groupId: group }))
        for (const { partition, offset } of partitions) found[`${topic}/${partition}`] = Number(offset);
      return found;
    }),

  set_group_offset: ({ group, topic, partition, offset }) =>
    administer(async (admin) => {
      await admin.setOffsets({ groupId: group, topic, partitions: [{ partition, offset: String(offset) }] });
      return null;
    }),

  describe_cluster: () =>
    administer(async (admin) => {
      const found = await admin.describeCluster();
      const brokers = found.brokers.map((broker) => [broker.nodeId, broker.host, broker.port]);
      return { brokers, controller: found.controller, cluster_id: found.clusterId };
    }),
};

function codeOf(error) {
  for (let at = error; at; at = at.cause ?? at.originalError) {
    if (typeof at.code === "number") return at.code;
    for (const inner of at.errors ?? at.groups ?? at.partitions ?? [])
      if (typeof (inner.error ?? inner).code === "number") return (inner.error ?? inner).code;
      else if (typeof inner.errorCode === "number") return inner.errorCode;
  }
  return null;
}

async function answer({ id, do: verb, ...rest }) {
  try {
    say({ id, ok: (await verbs[verb](rest)) ?? null });
  } catch (error) {
    process.stderr.write(`${error.stack}\n`);
    say({ id, error: codeOf(error), message: String(error) });
  }
}

await install();
for await (const line of createInterface({ input: process.stdin })) await answer(JSON.parse(line));
if (member.consumer) await member.consumer.disconnect();
process.exit(0);
