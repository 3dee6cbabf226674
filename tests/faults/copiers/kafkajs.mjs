// kafkajs: the old protocol; it can't name its seat in the group, so there is one worker at a time. See work.py.
import { appendFileSync } from "node:fs";
import kafkajs from "kafkajs";

const { Kafka, logLevel } = kafkajs;
const task = JSON.parse(process.argv[2]);
const kafka = new Kafka({
  brokers: task.bootstrap.split(","),
  clientId: task.worker,
  logLevel: logLevel.WARN,
  logCreator: () => (entry) => process.stderr.write(`${entry.namespace} ${JSON.stringify(entry.log)}\n`),
  connectionTimeout: 2_000,
  requestTimeout: 10_000,
  retry: { initialRetryTime: 100, maxRetryTime: 1_000, retries: 20 },
});

const now = () => Number(process.hrtime.bigint()) / 1e9; // the clock of Python's time.monotonic()
const end = () => process.kill(process.pid, task.by);
let over = false;
let busy = false;
let last = Date.now();
setInterval(() => busy && Date.now() - last > task.stuck_s * 1000 && fail(new Error("a call took too long")), 500).unref();
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function reach(step, transaction, more = {}) {
  last = Date.now();
  appendFileSync(task.journal, JSON.stringify({ at: now(), worker: task.worker, transaction, step, ...more }) + "\n");
  if (step !== task.at_step || transaction !== task.at_transaction) return;
  if (task.after_ms) setTimeout(end, task.after_ms);
  else {
    end();
    await pause(50); // a signal to oneself takes a moment
  }
}

function outputsOf(messages, transaction) {
  return messages.map((message) => {
    const source = message.value.toString();
    const key = Number(source.split("/")[0]);
    const partition = Math.floor(key / task.partitions) % task.partitions;
    return { partition, key: String(key), value: `${source}>${task.worker}:${transaction}`, source };
  });
}

let number = 0;
async function transact(producer, partition, messages) {
  number += 1;
  const outputs = outputsOf(messages, number);
  await reach("polled", number);
  const transaction = await producer.transaction();
  await reach("begun", number, { outputs: outputs.map((output) => [output.partition, output.value, output.source]) });
  // One partition after the other: of a send to several brokers, one of which says "not yet", kafkajs repeats all that
  // is not answered yet, under new sequence numbers, and so doubles messages.
  for (let number = 0; number < task.partitions; number++) {
    const messages = outputs.filter(({ partition }) => partition === number);
    if (messages.length) await transaction.send({ topic: task.target, messages });
  }
  await reach("produced", number);
  const offset = String(Number(messages.at(-1).offset) + 1);
  const topics = [{ topic: task.source, partitions: [{ partition, offset }] }];
  await transaction.sendOffsets({ consumerGroupId: task.group, topics });
  await reach("offsets", number);
  if (Math.random() < task.aborts) {
    await reach("aborting", number);
    await transaction.abort();
    await reach("aborted", number);
    return false;
  }
  await reach("committing", number);
  await transaction.commit();
  await reach("committed", number);
  return true;
}

function fail(error) {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
}

const producer = kafka.producer({
  transactionalId: task.transactional_id,
  transactionTimeout: task.timeout_ms,
  maxInFlightRequests: 1,
  idempotent: true,
});
const consumer = kafka.consumer({
  groupId: task.group,
  sessionTimeout: 6_000,
  heartbeatInterval: 500,
  maxWaitTimeInMs: 100,
  readUncommitted: false,
});
process.stdin.resume();
process.stdin.on("end", () => (over = true));
consumer.on(consumer.events.CRASH, ({ payload }) => fail(payload.error));
try {
  await producer.connect();
  await (await producer.transaction()).commit(); // an empty one: it fences whoever had the id before
  await consumer.connect();
  await consumer.subscribe({ topic: task.source, fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat, isStale }) => {
      for (let at = 0; at < batch.messages.length && !over && !isStale(); ) {
        const messages = batch.messages.slice(at, at + task.batch_max);
        busy = true;
        const done = await transact(producer, batch.partition, messages).catch(fail);
        busy = false;
        if (!done) continue;
        at += messages.length;
        resolveOffset(messages.at(-1).offset);
        await heartbeat();
      }
    },
  });
  await reach("open", 0);
} catch (error) {
  fail(error);
}
while (!over || busy) await pause(50);
process.exit(0);
